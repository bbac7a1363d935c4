# One RabbitMQ in one directory: ports, rabbitmq.conf, data/, log/, home/ (the
# cookie), rabbitmq.pid and epmd.pid. Nothing of the system's own RabbitMQ, and
# nothing that listens beyond the loopback addresses.
#
# BROKER chooses the version: empty or `system` is what the distribution has;
# 3.10, 4.0 and 4.3 are the distribution's where it is that one, else that of
# another Debian release below .dev/chroot (lib/chroot.sh).

# Debian's wrapper in /usr/sbin changes the user, fails in a private home, and
# exits 0: the real scripts are here.
RABBITMQ_BIN=/usr/lib/rabbitmq/bin

# installed_version ROOT: 3.10.8
installed_version() {
  local found
  for found in "$1"/usr/lib/rabbitmq/lib/rabbitmq_server-*; do
    if [ -d "$found" ]; then echo "${found##*-}"; fi
  done
}

# broker_find BROKER: sets BROKER_ROOT (empty: this system), BROKER_VERSION
# (3.10.8) and BROKER_LINE (3.10), installing what is missing.
broker_find() {
  local wanted=${1:-system}
  BROKER_ROOT=''
  BROKER_VERSION=$(installed_version "")
  if [ "$wanted" = system ] || [ "$(packaged_line)" = "$wanted" ]; then
    [ -n "$BROKER_VERSION" ] || install_packages rabbitmq-server
  else
    chroot_find "$wanted"
  fi
  BROKER_VERSION=$(installed_version "$BROKER_ROOT")
  BROKER_LINE=${BROKER_VERSION%.*}
  [ -n "$BROKER_VERSION" ] || die "no RabbitMQ in $BROKER_ROOT/usr/lib/rabbitmq/lib"
  if [ "$wanted" != system ] && [ "$wanted" != "$BROKER_LINE" ]; then
    die "BROKER=$wanted: Debian brings RabbitMQ $BROKER_VERSION there by now"
  fi
}

# packaged_line: 3.10, of the installed package or of the one apt would install.
packaged_line() {
  local version=$BROKER_VERSION
  if [ -z "$version" ]; then
    version=$(apt_candidate rabbitmq-server)
    version=${version%%-*}
  fi
  echo "${version%.*}"
}

# in_broker DIR COMMAND...: becomes COMMAND, in the broker's own root and with
# its variables only. A root of its own gets its mounts in a mount namespace of
# the process: they are gone with it, and nothing ever has to be unmounted.
in_broker() {
  local dir=$1 seen=$1 variables
  shift
  [ -z "$BROKER_ROOT" ] || seen=/dwell-state
  variables=(
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    LANG=C.UTF-8
    HOME="$seen/home"
    ERL_EPMD_ADDRESS=127.0.0.1
    ERL_EPMD_PORT="$(port "$(epmd_home "$dir")" epmd)"
    ERL_INETRC="$seen/inetrc"
    RABBITMQ_NODENAME="$(rabbitmq_node "$dir")"
    RABBITMQ_DIST_PORT="$(port "$dir" distribution)"
    RABBITMQ_CONF_ENV_FILE=/dev/null
    RABBITMQ_CONFIG_FILE="$seen/rabbitmq.conf"
    RABBITMQ_ADVANCED_CONFIG_FILE="$seen/advanced.config"
    RABBITMQ_ENABLED_PLUGINS_FILE="$seen/enabled_plugins"
    RABBITMQ_MNESIA_BASE="$seen/data"
    RABBITMQ_LOG_BASE="$seen/log"
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}'
    # Makes the start script become the server instead of waiting beside it.
    RUNNING_UNDER_SYSTEMD=true
  )
  if [ -z "$BROKER_ROOT" ]; then
    exec env -i -C "$seen" "${variables[@]}" "$@"
  fi
  exec unshare --mount --propagation private bash -c '
    set -e
    root=$1 dir=$2
    shift 2
    mount --rbind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --bind "$dir" "$root/dwell-state"
    exec chroot "$root" env -i -C /dwell-state "$@"
  ' in_broker "$BROKER_ROOT" "$dir" "${variables[@]}" "$@"
}

rabbitmq_node() { cat "$1/node"; }
rabbitmq_url() { echo "amqp://guest:guest@127.0.0.1:$(port "$1" amqp)/%2f"; }
rabbitmq_management_url() { echo "http://guest:guest@127.0.0.1:$(port "$1" management)"; }
rabbitmq_running() { running "$1" rabbitmq.pid; }

# rabbitmq_start DIR [OTHER]: returns once AMQP and management answer. A new
# broker joins the cluster of the one that runs in OTHER.
rabbitmq_start() {
  local dir
  dir=$(absolute "$1")
  if [ -n "${2:-}" ] && [ ! -f "$dir/node" ]; then
    mkdir -p "$dir/home"
    cp -p "$2/home/.erlang.cookie" "$dir/home/"
    epmd_home "$2" >"$dir/peer"
  fi
  locked "$dir/lock" rabbitmq_start_locked "$dir"
}

rabbitmq_start_locked() {
  local dir=$1
  if [ -f "$dir/version" ] && [ "$(cat "$dir/version")" != "$BROKER_VERSION" ]; then
    die "$dir holds data of RabbitMQ $(cat "$dir/version"), not of $BROKER_VERSION: choose another directory"
  fi
  if ! rabbitmq_running "$dir"; then
    mkdir -p "$dir/home" "$dir/data" "$dir/log"
    echo "$BROKER_VERSION" >"$dir/version"
    hold_ports "$dir" amqp management distribution epmd
    # The data bears the node's name: it stays, whatever becomes of the ports.
    [ -f "$dir/node" ] || echo "dwell-$(port "$dir" amqp)@localhost" >"$dir/node"
    rabbitmq_configure "$dir"
    epmd_start "$(epmd_home "$dir")"
    await_ports "$dir" amqp management distribution
    (cd "$dir" && in_broker "$dir" setsid "$RABBITMQ_BIN/rabbitmq-server") \
      </dev/null >"$dir/log/startup.log" 2>&1 9>&- &
    echo $! >"$dir/rabbitmq.pid"
  fi
  if ! wait_until 180 "$(cat "$dir/rabbitmq.pid")" rabbitmq_answers "$dir"; then
    tail -n 20 "$dir/log/startup.log" >&2
    end_process "$dir" rabbitmq.pid KILL 10
    rabbitmq_stop "$dir"
    die "RabbitMQ in $dir did not start, see log/ there"
  fi
}

# Each broker or cluster has its own register of Erlang nodes: a shared one would
# outlive them all, and nobody could say who may stop it.
epmd_home() { cat "$1/peer" 2>/dev/null || echo "$1"; }

epmd_start() {
  local dir=$1
  running "$dir" epmd.pid && return
  await_ports "$dir" epmd
  (cd "$dir" && in_broker "$dir" setsid epmd -address 127.0.0.1 -port "$(port "$dir" epmd)") \
    </dev/null >"$dir/log/epmd.log" 2>&1 9>&- &
  echo $! >"$dir/epmd.pid"
  wait_until 20 "$(cat "$dir/epmd.pid")" listening "$(port "$dir" epmd)" ||
    die "epmd of $dir did not start, see log/epmd.log there"
}

rabbitmq_configure() {
  cat >"$1/rabbitmq.conf" <<CONF
listeners.tcp.local = 127.0.0.1:$(port "$1" amqp)
management.tcp.ip = 127.0.0.1
management.tcp.port = $(port "$1" management)
management.rates_mode = none
default_user = guest
default_pass = guest
loopback_users.guest = true
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 50MB
log.console = false
log.file.level = warning
CONF
  if [ -f "$1/peer" ]; then
    cat >>"$1/rabbitmq.conf" <<CONF
cluster_formation.classic_config.nodes.1 = $(rabbitmq_node "$(cat "$1/peer")")
cluster_formation.classic_config.nodes.2 = $(rabbitmq_node "$1")
CONF
  fi
  # What localhost is, whatever /etc/hosts says (a minimal system has none).
  echo '{host, {127,0,0,1}, ["localhost"]}. {lookup, [file, native]}.' >"$1/inetrc"
  echo '[].' >"$1/advanced.config"
  echo '[rabbitmq_management].' >"$1/enabled_plugins"
}

# The AMQP listener is the last thing that a starting broker opens; management
# is there before, but fails on some questions for a moment longer.
rabbitmq_answers() {
  listening "$(port "$1" amqp)" && [ "$(http GET "$(rabbitmq_management_url "$1")/api/overview")" = 200 ]
}

rabbitmq_stop() {
  end_process "$1" rabbitmq.pid TERM 60
  end_process "$1" epmd.pid TERM 10
}

# epmd stays: only the server dies, as in a crash.
rabbitmq_kill() { end_process "$1" rabbitmq.pid KILL 10; }

rabbitmq_describe() {
  cat <<LINES
URL=$(rabbitmq_url "$1")
MANAGEMENT_URL=$(rabbitmq_management_url "$1")
PID=$(cat "$1/rabbitmq.pid")
PORT=$(port "$1" amqp)
MANAGEMENT_PORT=$(port "$1" management)
NODE=$(rabbitmq_node "$1")
VERSION=$(cat "$1/version")
LOG=$1/log
LINES
}
