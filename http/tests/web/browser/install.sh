# Installs the programs of the browser tests: Debian's chromium and node (as root), playwright-core and axe-core from npm into
# target/browser. Sourced by ./check, which has `need` and `install_missing`.
install_browser() {
  need chromium chromium
  need node nodejs
  need npm npm
  install_missing
  local there=target/browser/node_modules
  if [ ! -e "$there/playwright-core" ] || [ ! -e "$there/axe-core" ]; then
    say "installing playwright-core and axe-core into target/browser"
    mkdir -p target/browser
    npm install --prefix target/browser --no-save --no-audit --no-fund --silent playwright-core@1.65.0 axe-core@4.14.0 || {
      echo "npm could not install playwright-core and axe-core; in this directory: npm install --prefix target/browser playwright-core axe-core" >&2
      return 1
    }
  fi
}
