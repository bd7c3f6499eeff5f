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
-- Take one row of each key.
(select distinct on ({keys}) * from {staging})

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
