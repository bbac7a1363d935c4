# One Redis in one directory: redis.conf, ports, redis.pid, redis.log, the data.

redis_find() { have redis-server || install_packages redis-server; }

redis_version() { redis-server --version | sed 's/.* v=\([0-9.]*\).*/\1/'; }

redis_running() { running "$1" redis.pid; }

# redis_start DIR [ARGUMENT...]: returns once it answers. Arguments are kept for
# later starts that name none.
redis_start() {
  local dir
  dir=$(absolute "$1")
  shift
  locked "$dir/lock" redis_start_locked "$dir" "$@"
}

redis_start_locked() {
  local dir=$1 arguments=() line
  shift
  if ! redis_running "$dir"; then
    hold_ports "$dir" redis
    await_ports "$dir" redis
    if [ "$#" -gt 0 ]; then printf '%s\n' "$@" >"$dir/arguments"; fi
    if [ -f "$dir/arguments" ]; then
      while IFS= read -r line; do arguments+=("$line"); done <"$dir/arguments"
    fi
    redis_configure "$dir"
    (cd "$dir" && exec setsid redis-server "$dir/redis.conf" ${arguments[@]+"${arguments[@]}"}) \
      </dev/null >"$dir/startup.log" 2>&1 9>&- &
    echo $! >"$dir/redis.pid"
  fi
  if ! wait_until 60 "$(cat "$dir/redis.pid")" redis_answers "$(port "$dir" redis)"; then
    cat "$dir/startup.log" >&2
    tail -n 5 "$dir/redis.log" >&2 || true
    end_process "$dir" redis.pid KILL 10
    die "Redis in $dir did not start, see redis.log there"
  fi
}

redis_configure() {
  cat >"$1/redis.conf" <<CONF
bind 127.0.0.1
port $(port "$1" redis)
dir "$1"
logfile "$1/redis.log"
daemonize no
appendonly yes
appendfsync ${REDIS_APPENDFSYNC:-everysec}
save ""
CONF
}

# PONG comes only once the append-only file is loaded.
redis_answers() {
  local answer
  answer=$(
    exec 2>/dev/null 3<>"/dev/tcp/127.0.0.1/$1" || exit
    printf 'PING\r\n' >&3
    read -r -t 2 answer <&3
    printf '%s' "$answer"
  )
  [ "${answer%$'\r'}" = +PONG ]
}

redis_stop() { end_process "$1" redis.pid TERM 20; }
redis_kill() { end_process "$1" redis.pid KILL 10; }
redis_url() { echo "redis://127.0.0.1:$(port "$1" redis)/0"; }

redis_describe() {
  cat <<LINES
URL=$(redis_url "$1")
PID=$(cat "$1/redis.pid")
PORT=$(port "$1" redis)
VERSION=$(redis_version)
LOG=$1/redis.log
LINES
}
