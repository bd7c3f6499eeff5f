-- name: find :one
-- The snapshot of execution $1.
select
    version, fold_version, upcaster_digest, checksum, event_id, payload_digest, encryption, state
from noetl.projection_snapshot
where execution_id = $1;

-- name: put :exec
-- Keep a snapshot unless a later one is there.
insert into noetl.projection_snapshot as s (
    execution_id, version, fold_version, upcaster_digest, checksum, state, event_id,
    payload_digest, encryption
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (execution_id) do update
set version = excluded.version,
    fold_version = excluded.fold_version,
    upcaster_digest = excluded.upcaster_digest,
    checksum = excluded.checksum,
    state = excluded.state,
    event_id = excluded.event_id,
    payload_digest = excluded.payload_digest,
    encryption = excluded.encryption,
    created_at = now()
where s.version <= excluded.version;

-- name: find_before :one
-- The latest snapshot of execution $1 that is not beyond version $2.
select
    version, fold_version, upcaster_digest, checksum, event_id, payload_digest, encryption, state
from noetl.projection_past
where execution_id = $1 and version <= $2
order by version desc
limit 1;

-- name: keep :exec
-- Keep a snapshot for looking back unless one stands within $10 versions before it.
insert into noetl.projection_past (
    execution_id, version, fold_version, upcaster_digest, checksum, state, event_id,
    payload_digest, encryption
)
select $1::bigint, $2::bigint, $3, $4, $5, $6, $7, $8, $9
where not exists (
    select from noetl.projection_past
    where execution_id = $1 and version between $2 - $10::bigint and $2
)
on conflict do nothing;

-- name: thin :exec
-- Of execution $1's past leave the first snapshot in every $2 versions.
delete from noetl.projection_past as p
where p.execution_id = $1
    and exists (
        select
        from noetl.projection_past as o
        where o.execution_id = $1
            and o.version < p.version
            and o.version / $2::bigint = p.version / $2::bigint
    );

-- name: prune :many
-- Forget the past of at most $2 executions that ended more than $1 seconds ago.
with ended as (
    select e.execution_id
    from noetl.execution as e
    where e.ended_at < now() - make_interval(secs => $1)
        and exists (select from noetl.projection_past as p where p.execution_id = e.execution_id)
    limit $2
)
delete from noetl.projection_past as p
using ended
where p.execution_id = ended.execution_id
returning p.execution_id;

-- name: forget :exec
-- Forget what is remembered of execution $1's past.
delete from noetl.projection_past
where execution_id = $1;
