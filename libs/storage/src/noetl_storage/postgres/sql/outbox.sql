-- name: claim :many
-- Lease at most $3 rows to $1 for $2 seconds; see the function.
select outbox_id, execution_id, subject, message_id, data, codec
from noetl.claim_outbox($1, $2, $3);

-- name: settle :exec
-- Remove the rows $1.
select noetl.settle_outbox($1);

-- name: release :exec
-- Give the rows $1 back.
select noetl.release_outbox($1);

-- name: backlog :one
-- How many rows wait, and the age of the oldest in seconds.
select
    count(*) as rows_waiting,
    coalesce(extract(epoch from clock_timestamp() - min(created_at)), 0)::float8 as oldest_s
from noetl.outbox;
