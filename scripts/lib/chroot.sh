# Brokers that this distribution does not have: a Debian of another release
# below .dev/chroot, made by debootstrap. It is only ever mounted into inside
# mount namespaces of single processes (see in_broker), so that nothing has to be
# unmounted, and a delete cannot reach through.

# chroot_find BROKER: sets BROKER_ROOT, making the root at first use.
chroot_find() {
  BROKER_ROOT=$DEV/chroot/$1
  [ -d "$BROKER_ROOT" ] && return
  local suite
  case $1 in
    3.10) suite=bookworm ;;
    4.0) suite=trixie ;;
    4.3) suite=forky ;;
    *) die "BROKER=$1: 3.10, 4.0, 4.3 or system (here: ${BROKER_VERSION:-none})" ;;
  esac
  [ "$(id -u)" = 0 ] || die "BROKER=$1 is made with debootstrap and run in a chroot: both need root"
  install_packages debootstrap
  mkdir -p "$DEV/chroot"
  locked "$DEV/chroot/lock" chroot_make "$BROKER_ROOT" "$suite"
}

chroot_make() {
  local root=$1 suite=$2 log=$1.log mirror before=$SECONDS
  [ -d "$root" ] && return # Another process made it meanwhile.
  mirror=$(debian_mirror)
  [ -n "$mirror" ] || die "no Debian mirror in this system's apt sources"
  say "RabbitMQ ${root##*/}: making a Debian $suite below .dev/chroot (a minute or two)"
  rm -rf --one-file-system "$root.new"
  if ! unshare --mount --propagation private bash -c "$CHROOT_MAKE" chroot_make "$root.new" "$suite" "$mirror" \
    >"$log" 2>&1 </dev/null; then
    tail -n 5 "$log" >&2
    die "no Debian $suite, see .dev/chroot/${log##*/}"
  fi
  mv "$root.new" "$root"
  say "RabbitMQ ${root##*/}: made in $((SECONDS - before)) s"
}

# The suite's keys may be newer than this system's keyring, and the release file
# of a mirror's copy may be past its date; debootstrap knows no script for a
# release younger than itself, and `sid` fits all.
CHROOT_MAKE='
  set -e
  root=$1 suite=$2 mirror=$3
  debootstrap --variant=minbase --no-check-gpg "$suite" "$root" "$mirror" sid
  printf "#!/bin/sh\nexit 101\n" >"$root/usr/sbin/policy-rc.d"
  chmod 755 "$root/usr/sbin/policy-rc.d"
  printf "127.0.0.1 localhost %s\n" "$(hostname)" >"$root/etc/hosts"
  mkdir "$root/dwell-state"
  mountpoint -q "$root/proc" || mount --rbind /proc "$root/proc"
  mount --rbind /dev "$root/dev"
  apt() {
    chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
      -o Acquire::Check-Valid-Until=false -o Dpkg::Options::=--force-unsafe-io "$@"
  }
  apt update
  apt install --no-install-recommends rabbitmq-server
  apt clean
'

# debian_mirror: where this system's own apt fetches Debian from.
debian_mirror() {
  apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    sed -n '/-security/d; s/^Debian main //p' | sed -n '1s,/$,,p'
}
