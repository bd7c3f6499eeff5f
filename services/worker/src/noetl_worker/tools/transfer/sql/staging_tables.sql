-- name: name_of_table :one
-- Return the schema and the name of a table that was found.
select n.nspname as schema, c.relname as name
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = $1;

-- name: list_staging :many
-- Return what earlier attempts of a transfer have left.
select c.relname as name
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and c.relname like $2 and c.relkind = 'r';

-- name: make_staging :exec
-- Make the table that executors copy rows into, of the target's types.
create unlogged table {staging} ({columns});

-- name: make_done :exec
-- Make the table that says which tasks have copied their rows.
create unlogged table {done} (task bigint primary key);

-- name: drop :exec
-- Remove a table of a transfer.
drop table if exists {table};
