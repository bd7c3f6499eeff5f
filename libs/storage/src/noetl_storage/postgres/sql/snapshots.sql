-- name: find :one
-- The snapshot of execution $1.
select execution_id, version, fold_version, upcaster_digest, checksum, state
from noetl.projection_snapshot
where execution_id = $1;

-- name: put :exec
-- Keep a snapshot unless a later one is there.
insert into noetl.projection_snapshot as s (
    execution_id, version, fold_version, upcaster_digest, checksum, state
)
values ($1, $2, $3, $4, $5, $6)
on conflict (execution_id) do update
set version = excluded.version,
    fold_version = excluded.fold_version,
    upcaster_digest = excluded.upcaster_digest,
    checksum = excluded.checksum,
    state = excluded.state,
    created_at = now()
where s.version <= excluded.version;
