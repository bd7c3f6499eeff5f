-- name: make_markers :exec
-- Make the table that remembers which frames took effect in this database.
create table if not exists noetl_effect (
    execution_id text not null,
    frame_id text not null,
    outcome jsonb,
    committed_at timestamptz not null default now(),
    primary key (execution_id, frame_id)
);

-- name: mark :one
-- Claim a frame's effects for this transaction; whoever holds the same claim is waited for.
insert into noetl_effect (execution_id, frame_id)
values ($1, $2)
on conflict do nothing
returning frame_id;

-- name: find_outcome :one
-- Return the outcome of a frame that took effect before.
select outcome
from noetl_effect
where execution_id = $1 and frame_id = $2;

-- name: note_outcome :exec
-- Keep a frame's outcome together with its effects.
update noetl_effect
set outcome = $3::jsonb, committed_at = now()
where execution_id = $1 and frame_id = $2;

-- name: end_idle :one
-- Let the server end this transaction when its worker no longer speaks.
select set_config('idle_in_transaction_session_timeout', $1, true);

-- name: breathe :one
-- Show the server that the worker is alive.
select 1;
