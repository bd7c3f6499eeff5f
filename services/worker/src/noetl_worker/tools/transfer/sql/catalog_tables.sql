-- name: find_table :one
-- Return a table, partitioned table, view or foreign table by its quoted name.
select c.oid
from pg_catalog.pg_class c
where c.oid = to_regclass($1) and c.relkind in ('r', 'p', 'v', 'f');

-- name: list_tables :many
-- Return the names that a misspelt one may have meant.
select c.relname
from pg_catalog.pg_class c
where c.relkind in ('r', 'p', 'v', 'f') and pg_catalog.pg_table_is_visible(c.oid)
    and c.relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
order by c.relname
limit 500;

-- name: list_columns :many
-- Return a table's columns and their types.
select a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) as type, t.typcategory::text as category
from pg_catalog.pg_attribute a
join pg_catalog.pg_type t on t.oid = a.atttypid
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
order by a.attnum;

-- name: empty :exec
-- Remove every row, inside the transaction that writes the new ones.
truncate table {table};
