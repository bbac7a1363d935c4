//! `dwell init`: a commented topology and settings pair to begin with.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;

use super::{complain, say};
use crate::exit::Code;

/// Arguments of `dwell init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Where to.
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

/// Each file and what is written into it.
const FILES: [(&str, &str); 3] = [
    ("topology/orders.toml", include_str!("../../config/topology.example.toml")),
    ("topology/dwell.schema.json", crate::topology::SCHEMA),
    ("config/dwell.toml", include_str!("../../config/dwell.example.toml")),
];

/// Writes all, or none where one of them exists.
pub(super) fn init(args: &InitArgs) -> Result<Code, Code> {
    let there: Vec<PathBuf> = FILES.iter().map(|(name, _)| args.dir.join(name)).filter(|path| path.exists()).collect();
    if !there.is_empty() {
        let names: Vec<String> = there.iter().map(|path| path.display().to_string()).collect();
        complain(
            &format!("{} exists already, and nothing was written", names.join(" and ")),
            "what a person has written is never overwritten",
            "name another directory: `dwell init DIR`",
        );
        return Err(Code::Refused);
    }
    for (name, text) in FILES {
        let path = args.dir.join(name);
        write_new(&path, text).map_err(|error| {
            complain(
                &format!("{} cannot be written: {error}", path.display()),
                "",
                "check the directory and its rights",
            );
            Code::Failed
        })?;
        say(&format!("wrote {}", path.display()));
    }
    say(
        "next: put the addresses of RabbitMQ and Redis into config/dwell.toml, your bridges into topology/orders.toml;\n\
         then `dwell check`, `dwell plan`, `dwell apply` and `dwell run`",
    );
    Ok(Code::Done)
}

/// Never over a file that came to be meanwhile.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().ok_or(ErrorKind::InvalidInput)?;
    std::fs::create_dir_all(folder)?;
    std::fs::File::create_new(path)?.write_all(text.as_bytes())
}
