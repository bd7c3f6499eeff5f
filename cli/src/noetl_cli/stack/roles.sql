-- name: roles :exec
-- Create the missing login roles and databases and set the passwords; psql runs it.
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
alter role noetl_owner password :'noetl_owner';
alter role noetl_planner password :'noetl_planner';
alter role noetl_projector password :'noetl_projector';
alter role noetl_outbox password :'noetl_outbox';
alter role noetl_reaper password :'noetl_reaper';
alter role noetl_archivist password :'noetl_archivist';
alter role noetl_reader password :'noetl_reader';
alter role pft password :'pft';
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
