# shellcheck shell=bash
# Sourced by ./check: installs the programs of other systems for the interop tests into target/interop.
#
# install_actionhero installs the newest ActionHero and 12.5.0, install_redis_py the Python client,
# install_sidekiq_of SUITE a small Debian of that suite with its own Ruby and Sidekiq (about 300 MB).

interop_dir() { echo "${CARGO_TARGET_DIR:-target}/interop"; }

install_actionhero() {
  need node nodejs
  need npm npm
  install_missing
  local directory version
  for version in 12.5.0 latest; do
    directory="$(interop_dir)/actionhero-$([ $version = latest ] && echo newest || echo 12)"
    [ -e "$directory/whole" ] && continue
    rm -rf "$directory"
    mkdir -p "$directory"
    (cd "$directory" && npm init -y >/dev/null && npm install --no-audit --no-fund --silent "actionhero@$version" && touch whole) || return 1
  done
}

install_redis_py() {
  local venv
  venv="$(interop_dir)/venv"
  [ -e "$venv/whole" ] && return 0
  rm -rf "$venv"
  python3 -m venv "$venv" &&
    "$venv/bin/pip" install --quiet --disable-pip-version-check redis &&
    touch "$venv/whole"
}

# Creates a root directory for chroot. After a failure, the next run starts again.
install_sidekiq_of() {
  local suite=$1 root mirror
  root="$(interop_dir)/debian-$suite"
  mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
  [ -e "$root/whole" ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "installing another Debian needs root: run ./check interop-all as root" >&2
    return 1
  fi
  need debootstrap debootstrap
  install_missing
  rm -rf "$root"
  mkdir -p "$root"
  if ! debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$root.log" 2>&1; then
    echo "debootstrap cannot install Debian $suite from $mirror; last lines of $root.log:" >&2
    tail -n 5 "$root.log" >&2
    return 1
  fi
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  if ! chroot "$root" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends ruby-sidekiq ruby-activejob >>"$root.log" 2>&1; then
    echo "cannot install ruby-sidekiq in Debian $suite; last lines of $root.log:" >&2
    tail -n 5 "$root.log" >&2
    return 1
  fi
  touch "$root/whole"
}

# Prints the version of that Sidekiq.
sidekiq_of() {
  chroot "$(interop_dir)/debian-$1" ruby -e 'require "sidekiq"; print Sidekiq::VERSION'
}
