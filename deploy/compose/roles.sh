#!/bin/sh
# Runs once, when the database is created: the login roles that the migration grants to.
set -eu
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
  -v owner="$OWNER_PASSWORD" -v planner="$PLANNER_PASSWORD" -v projector="$PROJECTOR_PASSWORD" \
  -v outbox="$OUTBOX_PASSWORD" -v reaper="$REAPER_PASSWORD" -v reader="$READER_PASSWORD" \
  -v archivist="$ARCHIVIST_PASSWORD" <<'SQL'
create role noetl_owner login createrole password :'owner';
create role noetl_tenants nologin;
grant noetl_tenants to noetl_owner with admin option;
create role noetl_planner login password :'planner';
create role noetl_projector login password :'projector';
create role noetl_outbox login password :'outbox';
create role noetl_reaper login password :'reaper';
create role noetl_archivist login password :'archivist';
create role noetl_reader login password :'reader';
create database noetl owner noetl_owner;
revoke all on database noetl from public;
grant create, connect, temporary on database noetl to noetl_owner;
grant connect on database noetl
to noetl_planner, noetl_projector, noetl_outbox, noetl_reaper, noetl_archivist, noetl_reader;
SQL
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname noetl --file /etc/noetl/walls.sql
