-- name: create_schema :exec
-- Make the schema of all tables.
create schema if not exists noetl;

-- name: create_migration_table :exec
-- Make the table of applied migrations.
create table if not exists noetl.schema_migration (
    version integer primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
);

-- name: lock :exec
-- Let one migrator work at a time; the lock ends with the transaction.
select pg_advisory_xact_lock(hashtext('noetl.schema_migration'));

-- name: list_applied :many
-- The steps that this database has taken.
select version, name, checksum
from noetl.schema_migration
order by version;

-- name: exists :one
-- Whether this database has been migrated at all.
select to_regclass('noetl.schema_migration') is not null;

-- name: note :exec
-- Note step $1 as taken.
insert into noetl.schema_migration (version, name, checksum)
values ($1, $2, $3);
