#!/bin/sh
# Makes the login roles that the migration grants to, the database, and its walls; runs before every start of
# the services, since a restored database brings none of them, and a password may have changed.
set -eu
set -a
. /run/noetl/environment
set +a
# psql reads the passwords from its environment: everybody on this machine sees a command line.
psql --quiet --no-psqlrc -v ON_ERROR_STOP=1 --host postgres --username postgres --dbname postgres <<'SQL'
\getenv owner OWNER_PASSWORD
\getenv planner PLANNER_PASSWORD
\getenv projector PROJECTOR_PASSWORD
\getenv outbox OUTBOX_PASSWORD
\getenv reaper REAPER_PASSWORD
\getenv archivist ARCHIVIST_PASSWORD
\getenv reader READER_PASSWORD
select format('create role %I', role)
from unnest(array['noetl_owner', 'noetl_tenants', 'noetl_planner', 'noetl_projector', 'noetl_outbox',
    'noetl_reaper', 'noetl_archivist', 'noetl_reader']) as role
where not exists (select from pg_roles where rolname = role)
\gexec
alter role noetl_owner login createrole password :'owner';
alter role noetl_tenants nologin;
grant noetl_tenants to noetl_owner with admin option;
alter role noetl_planner login password :'planner';
alter role noetl_projector login password :'projector';
alter role noetl_outbox login password :'outbox';
alter role noetl_reaper login password :'reaper';
alter role noetl_archivist login password :'archivist';
alter role noetl_reader login password :'reader';
select 'create database noetl owner noetl_owner'
where not exists (select from pg_database where datname = 'noetl')
\gexec
revoke all on database noetl from public;
grant create, connect, temporary on database noetl to noetl_owner;
grant connect on database noetl
to noetl_planner, noetl_projector, noetl_outbox, noetl_reaper, noetl_archivist, noetl_reader;
SQL
psql --quiet --no-psqlrc -v ON_ERROR_STOP=1 --host postgres --username postgres --dbname noetl --file /etc/noetl/walls.sql
echo "roles and database are there"
