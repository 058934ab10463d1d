#!/usr/bin/env bash
# Sends valid and invalid requests that are generated from the OpenAPI description. Every response must match it.
#
# Installs schemathesis from PyPI into target/schemathesis. DULY_EXAMPLES is the number of requests per operation.
set -euo pipefail
cd "$(dirname "$0")/../../.."

venv=target/schemathesis
if [ ! -x "$venv/bin/st" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet 'schemathesis>=4,<5'
fi
cargo build --locked --quiet -p duly-cli
log=$(mktemp)
dir=$(mktemp -d)
duly=${CARGO_TARGET_DIR:-target}/debug/duly
token=$("$duly" --store "$dir/duly.db" token create schemathesis --role admin)
"$duly" --store "$dir/duly.db" serve --listen 127.0.0.1:0 --allow-commands >"$log" 2>"$dir/errors" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -rf "$dir" "$log"' EXIT
for _ in $(seq 100); do [ -s "$log" ] && break; sleep 0.1; done
url=$(head -n 1 "$log")
# Long polls are left out: claims, events and waits would take most of the time.
"$venv/bin/st" run "$url/openapi.json" --url "$url" \
  --header "Authorization: Bearer $token" \
  --max-examples "${DULY_EXAMPLES:-10}" --seed 7 --workers 1 --phases examples,coverage,fuzzing \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
  --exclude-path-regex '/(events|wait|claim)$'
curl -fsS "$url/readyz" >/dev/null
