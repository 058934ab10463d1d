# Output and package installation of ./check and ./torture.

say() { printf '\n== %s\n' "$*"; }

# need COMMAND PACKAGE: installs the package if the command is missing; without root, prints the command to run.
missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
install_missing() {
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "Some tests need missing packages. As root: apt-get update && apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  say "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}
