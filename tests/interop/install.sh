# shellcheck shell=bash
# Sourced by ./check: the programs of others that duly is tested beside, by the names of their packages.
#
# install_actionhero puts the newest ActionHero and 12.5.0 into target/interop, install_redis_py the Python client.

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
