# shellcheck shell=bash
# Sourced by ./check: the parts of the stage docs, and the tools that they use, in target/tools.

MDBOOK_VERSION=0.5.4
CARGO_DENY_VERSION=0.20.2
CARGO_DEB_VERSION=3.8.0
TYPOS_VERSION=1.51.1
PYYAML_VERSION=6.0.3

TOOLS="$PWD/target/tools"

install_tools() {
  need cc gcc
  need git git
  python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
  install_missing
  local venv="$TOOLS/venv" stamp
  stamp="$venv/typos-$TYPOS_VERSION-pyyaml-$PYYAML_VERSION"
  if [ ! -e "$stamp" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "typos==$TYPOS_VERSION" "pyyaml==$PYYAML_VERSION"
    touch "$stamp"
  fi
  install_crate mdbook "$MDBOOK_VERSION" --no-default-features --features search
  install_crate cargo-deny "$CARGO_DENY_VERSION"
}

# install_crate NAME VERSION [OPTION...]: builds the program unless that version is there.
install_crate() {
  local name=$1 version=$2
  shift 2
  case "$("$TOOLS/bin/$name" --version 2>/dev/null)" in
    *"$version") return 0 ;;
  esac
  say "building $name $version"
  cargo install --locked --quiet --root "$TOOLS" "$name@$version" "$@"
}

check_spelling() {
  say "spelling"
  "$TOOLS/venv/bin/typos"
}

check_book() {
  if [ ! -e book.toml ]; then
    echo "no book.toml: no book to build"
    return 0
  fi
  say "the book"
  rm -rf target/book
  "$TOOLS/bin/mdbook" build --dest-dir "$PWD/target/book"
  python3 test-support/book_links.py target/book
}

check_workflows() {
  say "workflows"
  "$TOOLS/venv/bin/python" - <<'PYTHON'
import pathlib, subprocess, yaml
files = sorted(p for p in pathlib.Path(".github").rglob("*") if p.suffix in (".yml", ".yaml"))
assert files, "no YAML below .github"
for path in files:
    assert isinstance(yaml.safe_load(path.read_text()), dict), f"{path}: not a mapping"
updates = yaml.safe_load(pathlib.Path(".github/dependabot.yml").read_text())["updates"]
for ecosystem, lock_file in (("cargo", "Cargo.lock"), ("npm", "package-lock.json")):
    listed = {name for update in updates if update["package-ecosystem"] == ecosystem for name in update["directories"]}
    found = subprocess.run(["git", "ls-files", f"*{lock_file}"], check=True, capture_output=True, text=True)
    locked = {"/" + str(pathlib.PurePath(path).parent).lstrip(".") for path in found.stdout.split()}
    assert listed == locked, f"dependabot.yml: the directories with a {lock_file} are {sorted(locked)}"
print(f"{len(files)} files")
PYTHON
}

# Without a network, known vulnerabilities cannot be checked. That fails only in CI.
check_dependencies() {
  say "dependencies"
  local manifest checks="bans licenses sources"
  if [ -n "${CI:-}" ] || git ls-remote --quiet https://github.com/RustSec/advisory-db HEAD >/dev/null 2>&1; then
    checks+=" advisories"
  else
    echo "advisories: NOT CHECKED, because the advisory database is unreachable"
  fi
  for manifest in Cargo.toml bench/Cargo.toml; do
    # shellcheck disable=SC2086
    "$TOOLS/bin/cargo-deny" --log-level error --manifest-path "$manifest" --config deny.toml \
      check --hide-inclusion-graph $checks
  done
}

# Cargo allows one libsqlite3-sys per program: the newest sqlx and diesel must accept one that duly accepts too. The
# program pushes with both through the inbox of the file on which a worker of duly runs.
check_beside_sqlx_and_diesel() {
  say "beside sqlx and diesel"
  local dir="target/beside"
  rm -rf "$dir"
  mkdir -p "$dir/src"
  cp test-support/beside.rs "$dir/src/main.rs"
  cat >"$dir/Cargo.toml" <<'TOML'
[package]
name = "beside"
version = "0.0.0"
edition = "2024"

[dependencies]
duly = { path = "../..", features = ["redis"] }
diesel = { version = "*", features = ["sqlite"] }
serde_json = "1"
sqlx = { version = "*", features = ["postgres", "sqlite", "runtime-tokio"] }
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }

[workspace]
TOML
  local log
  log=$(cd "$dir" && cargo generate-lockfile 2>&1) || { echo "$log" >&2; return 1; }
  # An old release that Cargo chooses to avoid a conflict is no success.
  if grep -E '^ +Adding (diesel|sqlx) .*available' <<<"$log" >&2; then
    return 1
  fi
  grep -A 1 -E '^name = "(diesel|libsqlite3-sys|rusqlite|sqlx)"$' "$dir/Cargo.lock" | grep -v '^--' | paste -sd ' '
  # From another directory, so that SQLite is compiled as in the programs of users: the flags of .cargo/config.toml leave
  # out functions that the macros of sqlx load.
  local root=$PWD file="$PWD/$dir/beside.db"
  (cd / && CARGO_TARGET_DIR="$root/target/beside-build" \
    cargo run --locked --quiet --manifest-path "$root/$dir/Cargo.toml" -- "$file")
}

# With the oldest rusqlite that Cargo.toml allows, and SQLite compiled as in the programs of users: without the flags of
# .cargo/config.toml. In a copy, because the lock file changes. Cargo also reads the configuration of the directories
# above the copy, so the variable is set here, which counts more. A test proves it by the compile options.
check_oldest_rusqlite() {
  local version dir="target/oldest-rusqlite"
  version=$(sed -n 's/^rusqlite = { version = ">=\([0-9.]*\),.*/\1/p' Cargo.toml)
  say "rusqlite $version, SQLite without our flags"
  rm -rf "$dir"
  mkdir -p "$dir"
  git ls-files -z | tar --create --null --files-from - | tar --extract --directory "$dir"
  (
    cd "$dir"
    export CARGO_TARGET_DIR=../oldest-build LIBSQLITE3_FLAGS= DULY_TEST_PLAIN_SQLITE=1
    cargo update --quiet --package rusqlite --precise "$version.0"
    cargo test --quiet -p duly --lib -- --nocapture sqlite_has_the_compile_options_of_this_build
    cargo test --quiet -p duly --lib --test contract --test behaviour
  )
}

check_packages() {
  say "packages"
  local package file files
  for package in duly duly-http duly-cli; do
    files=$(cargo package --locked --quiet --allow-dirty --list -p "$package")
    for file in README.md LICENSE-MIT LICENSE-APACHE; do
      grep -qx "$file" <<<"$files" || { echo "$package: the package has no $file" >&2; return 1; }
    done
    if grep -E '^(tests|target|bench|\.github)/|\.(db|png)$' <<<"$files"; then
      echo "$package: these files do not belong into the package" >&2
      return 1
    fi
    echo "$package: $(wc -l <<<"$files") files"
  done
  for package in http cli; do
    for file in LICENSE-MIT LICENSE-APACHE; do
      cmp "$file" "$package/$file"
    done
  done
  # Builds each package from its archive. Cargo takes the packages that depend on each other from these archives.
  cargo package --locked --quiet --allow-dirty --workspace --exclude test-support
}

# Builds the program that packaging/check installs and runs. In CI it is the release binary, which takes minutes, with
# the tool that makes a Debian package of it. Elsewhere it is that too if there is one already.
build_program() {
  if [ -z "${CI:-}" ] && [ ! -x target/release/duly ]; then
    cargo build --locked -p duly-cli
    echo "symbols and Debian package: NOT CHECKED, because there is no release binary: cargo build --release -p duly-cli"
    return 0
  fi
  say "release binary"
  cargo build --locked --release -p duly-cli
  check_strip
  install_crate cargo-deb "$CARGO_DEB_VERSION"
}

# The release profile must remove the symbols. The workflow `release` runs this too.
check_strip() {
  local program=target/release/duly symbols
  [ -x "$program" ] || { echo "there is no $program: cargo build --release -p duly-cli" >&2; return 1; }
  symbols=$(nm "$program" 2>/dev/null | wc -l)
  [ "$symbols" -eq 0 ] || { echo "$program has $symbols symbols: is strip set in profile.release?" >&2; return 1; }
}

# The version is that of Cargo.toml. A toolchain that is not installed is not downloaded.
check_msrv() {
  local version
  version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  if rustup toolchain list 2>/dev/null | grep -q "^$version[.-]"; then
    say "Rust $version"
    cargo "+$version" check --locked --workspace --all-targets
  else
    echo "MSRV: NOT CHECKED, because Rust $version is not installed: rustup toolchain install --no-self-update $version"
  fi
}

# Other systems. A target is added if that is possible, and never silently left out in CI.
check_targets() {
  local target
  for target in aarch64-apple-darwin x86_64-unknown-linux-musl; do
    say "$target"
    if rustup target add "$target" >/dev/null 2>&1; then
      check_target "$target"
    elif [ -n "${CI:-}" ]; then
      echo "$target: cannot be installed" >&2
      return 1
    else
      echo "$target: NOT CHECKED, because it is not installed: rustup target add $target"
    fi
  done
}

# No C compiler for the target is needed: the code is checked and nothing is linked.
check_target() {
  local name=${1//-/_}
  env "CC_$name=true" "AR_$name=true" cargo check --locked --target "$1" -p duly -p duly-http -p duly-cli
}
