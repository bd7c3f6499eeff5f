-- name: ensure :one
-- Make the partitions of this month and of $1 more; see the function.
select noetl.ensure_partitions($1);
