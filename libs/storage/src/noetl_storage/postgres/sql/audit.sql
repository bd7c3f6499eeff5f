-- name: read_stored :many
-- At most $3 events of history $1 after version $2, with the columns that queries read.
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, created_at, producer,
    causation_id, correlation_id, idempotency_key, node_name, node_id, status, stage_id, frame_id,
    command_id, context, result, error, payload_ref, meta, envelope_checksum, exact
from noetl.event
where execution_id = $1 and stream_version > $2
order by stream_version
limit $3;

-- name: read_many :many
-- At most $4 events of histories $1 behind version $3 of history $2, by history and version.
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, created_at, producer,
    causation_id, correlation_id, idempotency_key, node_name, node_id, status, stage_id, frame_id,
    command_id, context, result, error, payload_ref, meta, envelope_checksum, exact
from noetl.event
where execution_id = any($1::bigint[]) and (execution_id, stream_version) > ($2, $3)
order by execution_id, stream_version
limit $4;

-- name: find_owner :one
-- Whose history $1 is.
select tenant_id, organization_id
from noetl.execution_head
where execution_id = $1;

-- name: list_histories :many
-- At most $4 heads of tenant $1 and organization $2 after execution $3.
select execution_id, version, checksum
from noetl.execution_head
where tenant_id = $1 and organization_id = $2 and execution_id > $3
order by execution_id
limit $4;

-- name: find_version_at :one
-- The latest version of history $1 that did not happen after $2.
select coalesce(
    (
        select stream_version
        from noetl.event
        where execution_id = $1 and event_time <= $2
        order by stream_version desc
        limit 1
    ),
    0
);

-- name: find_version_of :one
-- The version of event $2 of history $1.
select stream_version
from noetl.event
where execution_id = $1 and event_id = $2;

-- name: list_buckets :many
-- The events of history $1 in $2 spans of equal length.
with span as (
    select
        min(event_time) as low,
        greatest(max(event_time) - min(event_time), interval '1 microsecond') as width
    from noetl.event
    where execution_id = $1
),
placed as (
    select
        e.stream_version,
        e.event_time,
        least(
            floor(
                extract(epoch from e.event_time - s.low) / extract(epoch from s.width) * $2::integer
            )::integer,
            $2::integer - 1
        ) as number
    from noetl.event as e
    cross join span as s
    where e.execution_id = $1
)
select
    number,
    count(*) as events,
    min(stream_version) as first_version,
    max(stream_version) as last_version,
    min(event_time) as began_at,
    max(event_time) as ended_at
from placed
group by number
order by number;
