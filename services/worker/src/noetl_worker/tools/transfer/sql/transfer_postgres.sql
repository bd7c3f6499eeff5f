-- name: is_plain :one
-- Tell whether a table takes a copy as it takes rows: no view, rules, policies or kept numbers.
select
    c.relkind in ('r', 'p') and not c.relhasrules and not c.relrowsecurity
    and not exists (
        select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attidentity = 'a'
    )
from pg_catalog.pg_class c
where c.oid = $1;

-- name: lock :exec
-- Be described, and never run: that alone locks the table against changes of its columns.
insert into {table} default values;

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
