-- name: roles :exec
-- Create the missing roles and databases, let the roles log in and set the passwords; psql runs it.
\set ON_ERROR_STOP on
select format('create role %I login', role)
from unnest(string_to_array(:'roles', ',')) as role
where not exists (
    select from pg_roles
    where rolname = role
)
\gexec
select 'create role noetl_tenants nologin'
where not exists (
    select from pg_roles
    where rolname = 'noetl_tenants'
)
\gexec
-- It makes the roles that read one tenant each, and manages no others.
alter role noetl_owner createrole;
grant noetl_tenants to noetl_owner with admin option;
alter role noetl_owner login password :'noetl_owner';
alter role noetl_planner login password :'noetl_planner';
alter role noetl_projector login password :'noetl_projector';
alter role noetl_outbox login password :'noetl_outbox';
alter role noetl_reaper login password :'noetl_reaper';
alter role noetl_archivist login password :'noetl_archivist';
alter role noetl_reader login password :'noetl_reader';
alter role pft login password :'pft';
select format('create database %I owner noetl_owner', :'database')
where not exists (
    select from pg_database
    where datname = :'database'
)
\gexec
select 'create database target owner pft'
where not exists (
    select from pg_database
    where datname = 'target'
)
\gexec
revoke all on database :"database" from public;
grant create, connect, temporary on database :"database" to noetl_owner;
grant connect on database :"database"
to noetl_planner, noetl_projector, noetl_outbox, noetl_reaper, noetl_archivist,
noetl_reader;
revoke all on database target from public;
