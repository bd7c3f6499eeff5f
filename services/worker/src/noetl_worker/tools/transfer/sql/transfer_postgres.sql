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

-- name: is_plain :one
-- Tell whether a table takes a copy as it takes rows: no view, rules, policies or kept numbers.
select
    c.relkind in ('r', 'p') and not c.relhasrules and not c.relrowsecurity
    and not exists (
        select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attidentity = 'a'
    )
from pg_catalog.pg_class c
where c.oid = $1;

-- name: list_columns :many
-- Return a table's columns and their types.
select a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) as type, t.typcategory::text as category
from pg_catalog.pg_attribute a
join pg_catalog.pg_type t on t.oid = a.atttypid
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
order by a.attnum;

-- name: lock :exec
-- Be described, and never run: that alone locks the table against changes of its columns.
insert into {table} default values;

-- name: empty :exec
-- Remove every row, inside the transaction that writes the new ones.
truncate table {table};

-- name: append :exec
-- Write a chunk: one array of texts a column, each cast to the column's type.
insert into {table} ({columns}) select {values} from unnest({arrays}) as source ({columns});

-- name: upsert :exec
-- Write a chunk; rows whose key is there already are changed.
insert into {table} ({columns}) select {values} from unnest({arrays}) as source ({columns})
on conflict ({keys}) do update set {changes};

-- name: upsert_keys :exec
-- Write a chunk of keys alone; those that are there already stay.
insert into {table} ({columns}) select {values} from unnest({arrays}) as source ({columns})
on conflict ({keys}) do nothing;
