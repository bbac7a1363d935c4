# What the operating system must bring, by apt, without starting its services.

# install_packages PACKAGE...: those that are missing, said first.
install_packages() {
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null)" = 'ii ' ] || missing+=("$package")
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  have apt-get || unavailable "please install ${missing[*]} (only Debian's apt is known here), or use SERVICES=docker or given"
  [ "$(id -u)" = 0 ] || unavailable "please install as root: apt-get install --no-install-recommends ${missing[*]}"
  say "installing with apt: ${missing[*]}"
  mkdir -p "$DEV"
  locked "$DEV/apt.lock" without_services apt_install "${missing[@]}"
}

apt_install() {
  # An old package list may name files that are gone: one update, one more try.
  apt_quiet install -y --no-install-recommends "$@" && return
  apt_quiet update || true
  apt_quiet install -y --no-install-recommends "$@" && return
  tail -n 5 "$DEV/apt.log" >&2
  die "apt could not install: $*"
}

apt_quiet() {
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" >>"$DEV/apt.log" 2>&1 </dev/null
}

# apt_candidate PACKAGE: the version that apt would install; nothing without apt.
apt_candidate() {
  local policy
  have apt-cache || return 0
  policy=$(apt-cache policy "$1")
  if [ -z "$policy" ] && [ "$(id -u)" = 0 ]; then # No package lists yet.
    mkdir -p "$DEV"
    apt_quiet update || true
    policy=$(apt-cache policy "$1")
  fi
  sed -n 's/^ *Candidate: //p' <<<"$policy"
}

# without_services COMMAND...: Debian starts what it installs unless
# policy-rc.d says 101; the file is put back as it was, whatever happens.
without_services() {
  local status=0
  POLICY=/usr/sbin/policy-rc.d
  # What an earlier run left when it was killed is not to be kept.
  if grep -qs dwell-policy "$POLICY"; then rm -f "$POLICY"; fi
  if [ -e "$POLICY" ]; then mv "$POLICY" "$POLICY.dwell-kept"; fi
  trap restore_policy EXIT
  printf '#!/bin/sh\n# dwell-policy\nexit 101\n' >"$POLICY"
  chmod 755 "$POLICY"
  ("$@") || status=$?
  restore_policy
  trap - EXIT
  return "$status"
}

restore_policy() {
  rm -f "$POLICY"
  if [ -e "$POLICY.dwell-kept" ]; then mv "$POLICY.dwell-kept" "$POLICY"; fi
}
