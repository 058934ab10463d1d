#!/usr/bin/env bash
# Checks the server against its OpenAPI description, which must be valid:
#
#   - a TypeScript client that is generated from it compiles and talks to a server (generated/smoke.ts),
#   - valid and invalid requests that are generated from it get responses that match it.
#
# Installs schemathesis and openapi-spec-validator from PyPI into target/schemathesis, and openapi-typescript,
# openapi-fetch and the TypeScript compiler from npm into target/openapi. DULY_EXAMPLES is the number of requests per
# operation.
set -euo pipefail
cd "$(dirname "$0")/../../.."

here=http/tests/web/generated
venv=target/schemathesis
client=target/openapi
if [ ! -x "$venv/bin/openapi-spec-validator" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet 'schemathesis>=4,<5' 'openapi-spec-validator>=0.9,<1'
fi
if [ ! -e "$client/whole-1" ]; then
  rm -rf "$client"
  mkdir -p "$client"
  npm install --prefix "$client" --no-save --no-audit --no-fund --silent \
    openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3 @types/node@20
  touch "$client/whole-1"
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

curl -fsS -H "Authorization: Bearer $token" -o "$client/openapi.json" "$url/openapi.json"
"$venv/bin/python" "$here/check_examples.py" "$client/openapi.json"
cp "$here/smoke.ts" "$here/tsconfig.json" "$client/"
echo '{ "type": "module" }' >"$client/package.json"
"$client/node_modules/.bin/openapi-typescript" "$client/openapi.json" --output "$client/duly.ts" >"$dir/generated" 2>&1 ||
  { cat "$dir/generated"; exit 1; }
"$client/node_modules/.bin/tsc" --project "$client"
DULY_URL=$url DULY_TOKEN=$token node "$client/compiled/smoke.js"
echo "the generated client compiles and works"

# Long polls are left out: claims, events and waits would take most of the time.
"$venv/bin/st" run "$url/openapi.json" --url "$url" \
  --header "Authorization: Bearer $token" \
  --max-examples "${DULY_EXAMPLES:-10}" --seed 7 --workers 1 --phases examples,coverage,fuzzing \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
  --exclude-path-regex '/(events|events/jobs|wait|claim)$'
curl -fsS "$url/readyz" >/dev/null
