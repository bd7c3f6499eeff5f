-- name: find_page :many
-- Execution $1 of owner $2, $3 and at most $5 of its events after version $4; one line at least.
select
    e.path, e.status as execution_status, e.catalog_version, e.parent_execution_id, h.version,
    v.event_id, v.execution_id, v.stream_version, v.tenant_id, v.organization_id, v.stream_id,
    v.aggregate_type, v.aggregate_id, v.event_type, v.schema_name, v.schema_version, v.event_time,
    v.created_at, v.producer, v.causation_id, v.correlation_id, v.idempotency_key, v.context,
    v.result, v.error, v.payload_ref, v.meta, v.envelope_checksum, v.exact
from noetl.execution as e
inner join noetl.execution_head as h on h.execution_id = e.execution_id
left join lateral (
    select
        event_id, execution_id, stream_version, tenant_id, organization_id, stream_id,
        aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time,
        created_at, producer, causation_id, correlation_id, idempotency_key, context, result,
        error, payload_ref, meta, envelope_checksum, exact
    from noetl.event
    where execution_id = $1 and stream_version > $4
    order by stream_version
    limit $5
) as v on true
where e.execution_id = $1 and e.tenant_id = $2 and e.organization_id = $3
order by v.stream_version;

-- name: find_run_events :many
-- What began and ended the runs of steps of execution $1, and successes after failed attempts: of
-- the $3 runs that began after version $2, in order.
with entered as (
    select node_id
    from noetl.event
    where execution_id = $1 and event_type = 'step.enter' and stream_version > $2
    order by stream_version
    limit $3
)
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id,
    aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time,
    created_at, producer, causation_id, correlation_id, idempotency_key, context, result,
    error, payload_ref, meta, envelope_checksum, exact
from noetl.event
where
    execution_id = $1 and stream_version > $2
    and (
        event_type in ('step.enter', 'step.failed', 'step.exit')
        or (event_type = 'call.error' and not context ? 'item_index')
        or (event_type = 'call.done' and context ? 'tries' and not context ? 'item_index')
    )
    and node_id in (select entered.node_id from entered)
order by stream_version;

-- name: list_check_events :many
-- The latest $3 ends of runs of steps that tell of checks, in the executions $1, of step $2 if it
-- is given.
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id,
    aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time,
    created_at, producer, causation_id, correlation_id, idempotency_key, context, result,
    error, payload_ref, meta, envelope_checksum, exact
from noetl.event
where
    execution_id = any($1::bigint[])
    and event_type = 'step.exit'
    and context @? '$.tasks.*.checks'
    and ($2::text is null or context ->> 'step' = $2)
order by execution_id desc, stream_version desc
limit $3;
