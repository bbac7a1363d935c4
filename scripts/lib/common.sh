# Shared by every script here: paths, messages, locks, ports, processes.
# Sourced by bash; what Docker mode needs keeps to bash 3.2.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
DEV=$ROOT/.dev

# All words for people go to stderr: stdout belongs to KEY=value lines.
say() { printf '%s\n' "$*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }
# unavailable WORDS: what is asked for cannot be had on this machine. Tests take
# this status for a reason to skip.
unavailable() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 69; }
# usage: the comment at the top of the script.
usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0" >&2; exit 64; }
have() { command -v "$1" >/dev/null 2>&1; }

# absolute DIR: made if missing, links resolved.
absolute() { mkdir -p -- "$1" && (cd -- "$1" && pwd -P); }

# locked FILE COMMAND...: one at a time. Servers close descriptor 9, or they
# would hold the lock for as long as they live.
locked() {
  local file=$1
  shift
  (
    exec 9>"$file"
    flock -w 300 9 || die "no lock on $file within 300 s"
    "$@"
  )
}

# --- ports -------------------------------------------------------------------
# Below the kernel's own range for outgoing connections (32768 and up), so that
# no client takes the port of a server that is down for a moment.
FIRST_PORT=20000
LAST_PORT=29999

# One register for all clones and directories of this user. A file named after
# the port says which directory holds it; it counts while that directory's own
# `ports` file says the same.
PORT_REGISTER=/tmp/dwell-ports-$(id -u)

# hold_ports DIR NAME...: DIR/ports, NAME=port a line, chosen at the first call.
hold_ports() {
  mkdir -m 700 "$PORT_REGISTER" 2>/dev/null || true
  [ -O "$PORT_REGISTER" ] || die "$PORT_REGISTER belongs to someone else"
  locked "$PORT_REGISTER/lock" hold_ports_locked "$@"
}

hold_ports_locked() {
  local dir=$1 names file owner number index=0
  shift
  names=("$@")
  for file in "$PORT_REGISTER"/[0-9]*; do
    [ -f "$file" ] || continue
    owner=$(cat "$file")
    grep -qsx "[a-z]*=${file##*/}" "$owner/ports" || rm -f "$file"
  done
  if [ -f "$dir/ports" ]; then
    # The register may have been lost (a reboot empties /tmp), and a copied
    # directory must not share with the one that it came from.
    owner=$(others_port "$dir")
    if [ -z "$owner" ]; then
      while IFS='=' read -r _ number; do echo "$dir" >"$PORT_REGISTER/$number"; done <"$dir/ports"
      return
    fi
    say "$dir: its ports belong to $owner by now, others are chosen"
  fi
  : >"$dir/ports.new"
  while read -r number; do
    echo "$dir" >"$PORT_REGISTER/$number"
    echo "${names[index]}=$number" >>"$dir/ports.new"
    index=$((index + 1))
  done < <(bindable_ports "$#")
  [ "$index" = "$#" ] || die "no $# free ports from $FIRST_PORT to $LAST_PORT (python3 looks for them)"
  mv "$dir/ports.new" "$dir/ports"
}

# others_port DIR: who else holds one of its ports, if anybody.
others_port() {
  local number owner
  while IFS='=' read -r _ number; do
    owner=$(cat "$PORT_REGISTER/$number" 2>/dev/null || true)
    if [ -n "$owner" ] && [ "$owner" != "$1" ]; then
      echo "$owner"
      return
    fi
  done <"$1/ports"
}

# bindable_ports COUNT: so many that nobody is bound to, and nobody holds.
bindable_ports() {
  python3 - "$1" "$FIRST_PORT" "$LAST_PORT" "$PORT_REGISTER" <<'PY'
import os, random, socket, sys
count, first, last = map(int, sys.argv[1:4])
held = set(os.listdir(sys.argv[4]))
for port in random.sample(range(first, last + 1), last - first + 1):
    if count == 0:
        break
    if str(port) in held:
        continue
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    count -= 1
PY
}

# port DIR NAME
port() { sed -n "s/^$2=//p" "$1/ports"; }

# listening PORT: something on 127.0.0.1 accepts connections there.
listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# await_ports DIR NAME...: a port just left may be held for a moment; one that
# stays taken is somebody else's.
await_ports() {
  local dir=$1 late=$((SECONDS + 10)) name number
  shift
  for name in "$@"; do
    number=$(port "$dir" "$name")
    while listening "$number"; do
      [ "$SECONDS" -lt "$late" ] || die "port $number ($name of $dir) is taken by another process; rm $dir/ports chooses anew"
      sleep 0.1
    done
  done
}

# --- processes ---------------------------------------------------------------
# A pid file alone proves nothing: after a reboot or a kill the number may be
# anybody's. Each server therefore runs with its own state directory as its
# working directory, and a pid counts only while that holds.

# running DIR PIDFILE
running() {
  local pid
  pid=$(cat "$1/$2" 2>/dev/null) && [ -n "$pid" ] && [ "/proc/$pid/cwd" -ef "$1" ]
}

# signal DIR PIDFILE SIGNAL
signal() {
  running "$1" "$2" && kill -s "$3" "$(cat "$1/$2")" 2>/dev/null
}

# end_process DIR PIDFILE SIGNAL SECONDS: the signal, then KILL if it is late.
end_process() {
  local dir=$1 file=$2 late=$((SECONDS + $4))
  signal "$dir" "$file" "$3" || true
  signal "$dir" "$file" CONT || true # It may be paused, and would not hear.
  while running "$dir" "$file"; do
    if [ "$SECONDS" -ge "$late" ]; then
      say "$dir: no end within $4 s of SIG$3, killed"
      signal "$dir" "$file" KILL || true
      late=$((SECONDS + 10))
    fi
    sleep 0.05
  done
  rm -f "$dir/$file"
}

# Private servers are noted below .dev from start to stop, so that `services stop`
# also ends those that a killed test has left behind.
note_private() { mkdir -p "$DEV/private" && echo "$1" >"$DEV/private/${1//\//%}"; }
forget_private() { rm -f "$DEV/private/${1//\//%}"; }

# alive PID: it is there, and no zombie.
alive() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) }
  [ "${stat%% *}" != Z ]
}

# wait_until SECONDS PID COMMAND...: 0 once COMMAND succeeds, 1 when the process
# is gone or the time is up.
wait_until() {
  local late=$((SECONDS + $1)) pid=$2
  shift 2
  until "$@"; do
    alive "$pid" || return 1
    [ "$SECONDS" -lt "$late" ] || return 1
    sleep 0.1
  done
}

# --- HTTP --------------------------------------------------------------------
# http METHOD URL: prints the status code; plain http with user:password.
http() {
  local rest=${2#http://} path=/ login='' status
  case $rest in */*) path=/${rest#*/} rest=${rest%%/*} ;; esac
  case $rest in *@*) login=${rest%@*} rest=${rest##*@} ;; esac
  (
    exec 2>/dev/null 3<>"/dev/tcp/${rest%%:*}/${rest##*:}" || exit 1
    printf '%s %s HTTP/1.0\r\nHost: %s\r\nAuthorization: Basic %s\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n' \
      "$1" "$path" "$rest" "$(printf '%s' "$login" | base64 | tr -d '\n')" >&3
    read -r -t 10 _ status _ <&3 && printf '%s\n' "$status"
  )
}
