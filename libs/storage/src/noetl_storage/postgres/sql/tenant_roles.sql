-- name: create :one
-- Make the role that reads tenant $1, with the password of verifier $2 and at most $3 connections.
select noetl.create_tenant($1, $2, $3);

-- name: drop :one
-- Take the role of tenant $1 away.
select noetl.drop_tenant($1);

-- name: end_long_reads :one
-- End the sessions of tenants' roles that are at something for longer than $1 seconds.
select noetl.end_long_reads($1);

-- name: find_own_tenant :one
-- The tenant that the database's first reader reads: the installation's own.
select tenant_id
from noetl.tenant_role
where role_name = 'noetl_reader';
