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
select
    a.attname,
    pg_catalog.format_type(a.atttypid, a.atttypmod) as type,
    case
        when t.typtype = 'd' then pg_catalog.format_type(t.typbasetype, t.typtypmod)
        else pg_catalog.format_type(a.atttypid, a.atttypmod)
    end as stored_type,
    t.typcategory::text as category
from pg_catalog.pg_attribute a
join pg_catalog.pg_type t on t.oid = a.atttypid
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
order by a.attnum;

-- name: empty :exec
-- Remove every row, inside the transaction that writes the new ones.
truncate table {table};

-- name: append :exec
-- Write what was staged.
insert into {table} ({columns}) select {columns} from {rows} as source;

-- name: upsert :exec
-- Write what was staged; rows whose key is there already are changed.
insert into {table} as target ({columns}) select {columns} from {rows} as source
on conflict ({keys}) do update set {changes};

-- name: upsert_keys :exec
-- Write the keys that were staged; those that are there already stay.
insert into {table} ({columns}) select {columns} from {rows} as source
on conflict ({keys}) do nothing;

-- name: merge :exec
-- Write what was staged; rows whose key is there already are changed. No unique index is needed.
merge into {table} as target using {rows} as source on {matches}
when matched then update set {changes}
when not matched then insert ({columns}) values ({values});

-- name: merge_keys :exec
-- Write the keys that were staged; those that are there already stay.
merge into {table} as target using {rows} as source on {matches}
when not matched then insert ({columns}) values ({values});

-- name: latest :many
-- Take one row of each key, the one that was staged last.
(select distinct on ({keys}) * from {staging} order by {keys}, ctid desc)

-- name: lock :exec
-- Let nobody else write into a table until the transaction ends.
lock table {table} in share row exclusive mode;

-- name: find_repeated :one
-- Return a key that several staged rows have.
select {texts} from {staging} group by {keys} having count(*) > 1 limit 1;

-- name: find_missing :one
-- Return a staged row without a whole key.
select {texts} from {staging} where {absent} limit 1;

-- name: stage :exec
-- Make the table that rows wait in until all of them are there.
create temporary table {staging} ({columns}) on commit drop;
