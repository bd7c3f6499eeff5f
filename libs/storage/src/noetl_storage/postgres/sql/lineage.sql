-- name: read_steps :many
-- The events of history $1 after version $2 up to $3 that runs and steps begin, end or result in.
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, created_at, producer,
    causation_id, correlation_id, idempotency_key, context, result, error, payload_ref, meta,
    envelope_checksum, exact
from noetl.event
where execution_id = $1
    and stream_version > $2
    and stream_version <= $3
    and (
        event_type in (
            'playbook.initialized', 'execution.inherited', 'playbook.completed', 'playbook.failed',
            'execution.cancelled', 'step.enter', 'step.failed', 'step.exit', 'loop.done',
            'loop.failed'
        )
        or (
            event_type in ('call.done', 'call.error')
            and coalesce(context -> 'item_index', 'null') = 'null'
        )
    )
order by stream_version;

-- name: list_behind :many
-- At most $4 executions of shard $1 of $2 that were told less far than the ledger goes, or otherwise.
-- $3 is how this release tells. What has left the ledger cannot be told again: it stays as it is.
-- A shard's number takes microseconds: it is asked for those alone that are behind.
with behind as materialized (
    select
        h.execution_id, h.tenant_id, h.organization_id, h.updated_at, h.version as head,
        case when p.lineage_version = $3 then p.version else 0 end as kept,
        case when p.lineage_version = $3 then p.state end as state
    from noetl.execution_head as h
    left join noetl.lineage_position as p on p.execution_id = h.execution_id
    where h.version > coalesce(p.version, 0) or p.lineage_version <> $3
)
select b.execution_id, b.tenant_id, b.organization_id, b.head, b.kept, b.state
from behind as b
where noetl.shard_of(b.execution_id, $2) = $1
    and (
        select true
        from noetl.event as e
        where e.execution_id = b.execution_id and e.stream_version = 1
        limit 1
    )
order by b.updated_at
limit $4;

-- name: move :one
-- Say that execution $1 is told up to version $3 in the manner $4, unless it was not up to $2 before.
insert into noetl.lineage_position as p (execution_id, version, lineage_version, state)
select $1::bigint, $3::bigint, $4::integer, $5::bytea
where $2::bigint = 0
    or exists (select from noetl.lineage_position where execution_id = $1 and version = $2)
on conflict (execution_id) do update
set version = excluded.version,
    lineage_version = excluded.lineage_version,
    state = excluded.state,
    updated_at = now()
where (p.version = $2 and p.lineage_version = $4) or ($2 = 0 and p.lineage_version <> $4)
returning p.version;

-- name: keep :exec
-- Keep run events of execution $1; those that are there and say the same stay as delivered as before.
insert into noetl.lineage as l (
    execution_id, tenant_id, organization_id, version, ordinal, event_type, event_time, run_id, job,
    event
)
select $1, $2, $3, r.version, r.ordinal, r.event_type, r.event_time, r.run_id, r.job, r.body::json
from unnest(
    $4::bigint[], $5::integer[], $6::text[], $7::timestamptz[], $8::text[], $9::text[], $10::text[]
) as r (version, ordinal, event_type, event_time, run_id, job, body)
on conflict (execution_id, version, ordinal) do update
set event_type = excluded.event_type,
    event_time = excluded.event_time,
    run_id = excluded.run_id,
    job = excluded.job,
    event = excluded.event,
    delivered_at = null,
    refusal = null
where l.event::text <> excluded.event::text;

-- name: remove_others :exec
-- Remove the run events of execution $1 between versions $2 and $3 besides those $4, $5.
delete from noetl.lineage as l
where l.execution_id = $1
    and l.version > $2
    and l.version <= $3
    and not exists (
        select
        from unnest($4::bigint[], $5::integer[]) as r (version, ordinal)
        where r.version = l.version and r.ordinal = l.ordinal
    );

-- name: list_undelivered :many
-- At most $3 run events of shard $1 of $2 that were neither taken nor refused.
select execution_id, version, ordinal, event::text as body
from noetl.lineage
where delivered_at is null
    and refusal is null
    and noetl.shard_of(execution_id, $2) = $1
order by execution_id, version, ordinal
limit $3;

-- name: settle :exec
-- Note that run event $3 of version $2 of execution $1 was taken, or refused for $4.
update noetl.lineage
set delivered_at = case when $4::text is null then now() end, refusal = $4
where execution_id = $1 and version = $2 and ordinal = $3;

-- name: forget :many
-- Have execution $1 told again.
update noetl.lineage_position
set version = 0, lineage_version = 0, state = '', updated_at = now()
where execution_id = $1
returning execution_id;
