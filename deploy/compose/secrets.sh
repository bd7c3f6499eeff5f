#!/bin/sh
# Makes what .env does not give, at the first start and never again, and hands each container its own settings:
# a volume for each holds one file of variables. `docker compose run --rm secrets token` prints the owner's token.
set -eu
umask 077
KEPT="${SECRETS_FOLDER:-/secrets}/values"
MADE="${MADE_FOLDER:-/made}"

refuse() { echo "$1" >&2; exit 2; }
read_kept() { if [ -f "$KEPT" ]; then sed -n "s/^$1=//p" "$KEPT" | tail -n 1; fi; }
make_bytes() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; }
digest() { printf '%s' "$1" | sha256sum | cut -d ' ' -f 1; }

if [ "${1:-}" = token ]; then
  token="$(read_kept OWNER_TOKEN)"
  [ -n "$token" ] || refuse "the owner's token is made at the first start: docker compose up -d"
  made="$(digest "$token")"
  [ "${NOETL_OWNER_TOKEN_SHA256:-$made}" = "$made" ] ||
    refuse "NOETL_OWNER_TOKEN_SHA256 names another token: use that one, or leave it empty and start again"
  echo "$token"
  exit 0
fi

# read_given NAME: the variable of .env, empty where there is none.
read_given() {
  eval "given=\${NOETL_$1:-}"
  case "$1" in
    # It stands in addresses.
    *_PASSWORD) allowed='A-Za-z0-9_.-' marks='_ . -' ;;
    *) allowed='A-Za-z0-9+/=_:,.-' marks='+ / = _ : , . -' ;;
  esac
  case "$given" in
    change-me) refuse "NOETL_$1 is still change-me: give it a value of its own, or leave it empty to have one made" ;;
    *[!$allowed]*) refuse "NOETL_$1: use letters, digits and $marks" ;;
  esac
}

# take NAME DEFAULT: what is given, else what is kept, else the default; it is kept from now on.
take() {
  read_given "$1"
  kept="$(read_kept "$1")"
  value="${given:-${kept:-$2}}"
  printf '%s=%s\n' "$1" "$value" >> "$KEPT.new"
  eval "$1=\$value"
}

# One at a time, and all are kept at once before any is handed out: a start that ends half-way changes nothing.
exec 9> "$KEPT.lock"
flock 9
: > "$KEPT.new"
for name in ADMIN OWNER PLANNER PROJECTOR OUTBOX REAPER ARCHIVIST READER; do
  take "${name}_PASSWORD" "$(make_bytes 24)"
done
for name in ADMIN PLANNER WORKER PROJECTOR OUTBOX REAPER SOURCE MONITOR; do
  take "NATS_${name}_PASSWORD" "$(make_bytes 24)"
done
take S3_ACCESS_KEY "$(make_bytes 10)"
take S3_SECRET_KEY "$(make_bytes 24)"
take SECRET_KEY "$(head -c 32 /dev/urandom | base64)"
take OWNER_TOKEN "owner_$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=')"
read_given OWNER_TOKEN_SHA256
mv "$KEPT.new" "$KEPT"
OWNER_TOKEN_SHA256="${given:-$(digest "$OWNER_TOKEN")}"

# give CONSUMER: write standard input as its settings; only its container mounts them.
give() {
  cat > "$MADE/$1/environment.new"
  chmod 444 "$MADE/$1/environment.new"
  chmod 755 "$MADE/$1"
  mv "$MADE/$1/environment.new" "$MADE/$1/environment"
}

# of_store SERVICE: where payloads are, and with which keys.
of_store() {
  cat <<VALUES
NOETL_$1_PAYLOAD_URL='s3://noetl?endpoint=http://s3:8333&region=us-east-1'
NOETL_$1_PAYLOAD_ACCESS_KEY='$S3_ACCESS_KEY'
NOETL_$1_PAYLOAD_SECRET_KEY='$S3_SECRET_KEY'
VALUES
}
of_ledger() { echo "NOETL_$1_POSTGRES_DSN='postgresql://noetl_$2:$3@postgres/noetl'"; }
of_bus() { echo "NOETL_$1_NATS_URL='nats://$2:$3@nats:4222'"; }

give postgres <<VALUES
POSTGRES_PASSWORD='$ADMIN_PASSWORD'
PGPASSWORD='$ADMIN_PASSWORD'
OWNER_PASSWORD='$OWNER_PASSWORD'
PLANNER_PASSWORD='$PLANNER_PASSWORD'
PROJECTOR_PASSWORD='$PROJECTOR_PASSWORD'
OUTBOX_PASSWORD='$OUTBOX_PASSWORD'
REAPER_PASSWORD='$REAPER_PASSWORD'
ARCHIVIST_PASSWORD='$ARCHIVIST_PASSWORD'
READER_PASSWORD='$READER_PASSWORD'
VALUES
give nats <<VALUES
NATS_ADMIN_PASSWORD='$NATS_ADMIN_PASSWORD'
NATS_PLANNER_PASSWORD='$NATS_PLANNER_PASSWORD'
NATS_WORKER_PASSWORD='$NATS_WORKER_PASSWORD'
NATS_PROJECTOR_PASSWORD='$NATS_PROJECTOR_PASSWORD'
NATS_OUTBOX_PASSWORD='$NATS_OUTBOX_PASSWORD'
NATS_REAPER_PASSWORD='$NATS_REAPER_PASSWORD'
NATS_SOURCE_PASSWORD='$NATS_SOURCE_PASSWORD'
NATS_MONITOR_PASSWORD='$NATS_MONITOR_PASSWORD'
VALUES
give s3 <<VALUES
ACCESS_KEY='$S3_ACCESS_KEY'
SECRET_KEY='$S3_SECRET_KEY'
VALUES
{
  of_ledger STORAGE owner "$OWNER_PASSWORD"
  of_bus MESSAGING admin "$NATS_ADMIN_PASSWORD"
} | give jobs
{
  of_bus PLANNER planner "$NATS_PLANNER_PASSWORD"
  echo "NOETL_PLANNER_NATS_MONITOR_URL='nats://monitor:$NATS_MONITOR_PASSWORD@nats:4222'"
  of_ledger PLANNER planner "$PLANNER_PASSWORD"
  of_store PLANNER
  echo "NOETL_PLANNER_SECRET_KEY='$SECRET_KEY'"
  echo "NOETL_PLANNER_OWNER_TOKEN_SHA256='$OWNER_TOKEN_SHA256'"
} | give planner
{
  of_bus WORKER worker "$NATS_WORKER_PASSWORD"
  of_store WORKER
  echo "NOETL_WORKER_SECRET_KEY='$SECRET_KEY'"
} | give worker
{
  of_bus PROJECTOR projector "$NATS_PROJECTOR_PASSWORD"
  of_ledger PROJECTOR projector "$PROJECTOR_PASSWORD"
  of_store PROJECTOR
} | give projector
{
  of_bus OUTBOX outbox "$NATS_OUTBOX_PASSWORD"
  of_ledger OUTBOX outbox "$OUTBOX_PASSWORD"
} | give outbox
{
  of_bus REAPER reaper "$NATS_REAPER_PASSWORD"
  of_ledger REAPER reaper "$REAPER_PASSWORD"
  of_store REAPER
  echo "NOETL_REAPER_RETENTION_DSN='postgresql://noetl_archivist:$ARCHIVIST_PASSWORD@postgres/noetl'"
} | give reaper
echo "every container has its settings"
