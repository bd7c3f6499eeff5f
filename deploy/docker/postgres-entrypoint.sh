#!/bin/sh
# What the public image's entrypoint does, as far as compose asks for it: a cluster at the first start, the
# scripts of /docker-entrypoint-initdb.d, then the server. As root it prepares the folder and steps down.
set -eu
if [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA"
  chown -R postgres:postgres /var/lib/postgresql
  chmod 700 "$PGDATA"
  exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
export HOME=/var/lib/postgresql
if [ "${1:-postgres}" != postgres ]; then exec "$@"; fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  : "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD}"
  POSTGRES_USER="${POSTGRES_USER:-postgres}"
  export POSTGRES_USER
  secret="$(mktemp)"
  printf '%s\n' "$POSTGRES_PASSWORD" > "$secret"
  # shellcheck disable=SC2086 - several options
  initdb --pgdata "$PGDATA" --username "$POSTGRES_USER" --pwfile "$secret" --auth-host scram-sha-256 \
    --auth-local trust --encoding UTF8 --locale C ${POSTGRES_INITDB_ARGS:-} > /dev/null
  rm "$secret"
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  pg_ctl --pgdata "$PGDATA" --wait --options "-c listen_addresses='' -c unix_socket_directories=/tmp" start
  for script in /docker-entrypoint-initdb.d/*.sh; do
    [ -e "$script" ] && PGHOST=/tmp sh "$script"
  done
  pg_ctl --pgdata "$PGDATA" --wait --mode fast stop
fi
shift || true
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
