-- name: bounds :one
-- Return the least and the greatest value of a query's column.
select min({column}) as low, max({column}) as high from ({query}
) as source;

-- name: range :many
-- Return the rows of a query that one task reads.
select {columns} from ({query}
) as source where {condition}

-- name: snapshot :exec
-- See what the transaction saw that exported a snapshot.
set transaction snapshot '{snapshot}';

-- name: mark :one
-- Note that a task has written its rows; nothing is returned when it had done so before.
insert into {done} (task) values ($1) on conflict do nothing returning task;
