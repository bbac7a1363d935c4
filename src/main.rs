//! The `dwell` program.
fn main() -> std::process::ExitCode {
    let loaded = dwell::config::load(None, std::env::vars_os(), &[]);
    print!("{}", dwell::problem::render(&loaded.problems, &loaded.sources, false));
    let Some(settings) = loaded.settings else { return 65.into() };
    let _ = dwell::log::init(&settings.log);
    let limits = dwell::topology::Limits {
        broker_limit: settings.delay.broker_limit,
        max_delay: settings.delay.max_delay,
        prefix: settings.amqp.prefix.clone(),
    };
    let dir = std::env::args().nth(1).unwrap_or("topology".into());
    let t = dwell::topology::load(std::path::Path::new(&dir), &limits);
    print!("{}", dwell::problem::render(&t.problems, &t.sources, false));
    let Some(topology) = t.topology else { return 65.into() };
    let rt = tokio::runtime::Runtime::new().unwrap();
    rt.block_on(dwell::app::run(settings, topology)).into()
}
