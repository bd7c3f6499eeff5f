-- name: own_database :exec
-- Create the database of one tenant, and login roles that open no other one; psql runs it.
\set ON_ERROR_STOP on
-- Migrations grant to these roles. They belong to the whole server, and elsewhere log in themselves.
select format('create role %I nologin', role)
from unnest(string_to_array(:'groups', ',') || 'noetl_tenants'::text) as role
where not exists (
    select from pg_roles
    where rolname = role
)
\gexec
select format('create role %I login', role || :'suffix')
from json_object_keys(:'passwords') as role
where not exists (
    select from pg_roles
    where rolname = role || :'suffix'
)
\gexec
select format('alter role %I login password %L', role || :'suffix', password)
from json_each_text(:'passwords') as entry (role, password)
\gexec
select format('create database %I owner %I', :'database', 'noetl_owner' || :'suffix')
where not exists (
    select from pg_database
    where datname = :'database'
)
\gexec
select format('create database %I owner %I', :'target', :'target_role' || :'suffix')
where not exists (
    select from pg_database
    where datname = :'target'
)
\gexec
revoke all on database :"database" from public;
revoke all on database :"target" from public;
select format('alter role %I createrole', 'noetl_owner' || :'suffix')
\gexec
select format('grant noetl_tenants to %I with admin option', 'noetl_owner' || :'suffix')
\gexec
select format(
    'grant create, connect, temporary on database %I to %I', :'database', 'noetl_owner' || :'suffix'
)
\gexec
select format('grant connect on database %I to %I', :'database', role || :'suffix')
from unnest(string_to_array(:'groups', ',')) as role
\gexec
-- Not inherited: who inherited the rights of a service could connect wherever that service may.
select format('grant %I to %I with inherit false, set true', role, role || :'suffix')
from unnest(string_to_array(:'groups', ',')) as role
\gexec
select format('alter role %I in database %I set role = %L', role || :'suffix', :'database', role)
from unnest(string_to_array(:'groups', ',')) as role
\gexec
