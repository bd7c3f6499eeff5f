-- name: append :one
-- Append events, write messages, settle requests in one transaction; see the function. The ingest
-- time of all events is that of the transaction.
select noetl.append($1, $2, $3, $4, $5, $6, $7, $8, $9) as outbox_ids, now() as ingest_time;

-- name: begin :one
-- The same with a request that nobody has kept, which $10 to $17 are, for the playbook $18 if that
-- is to be the latest of its path; see both functions.
select noetl.append($1, $2, $3, $4, $5, $6, $7, $8, $9) as outbox_ids, now() as ingest_time
from noetl.keep_begun_request($10, $11, $12, $13, $14, $15, $16, $17, $18);

-- name: append_states :one
-- The same, and move the values of state that $10 lists; see both functions.
select noetl.append($1, $2, $3, $4, $5, $6, $7, $8, $9) as outbox_ids, now() as ingest_time
from noetl.change_states($10);

-- name: list_heads :many
-- Where the histories $1 end.
select execution_id, version, checksum
from noetl.execution_head
where execution_id = any($1::bigint[]);

-- name: read :many
-- At most $3 events of history $1 after version $2.
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, created_at, producer,
    causation_id, correlation_id, idempotency_key, context, result, error, payload_ref, meta,
    envelope_checksum, exact
from noetl.event
where execution_id = $1 and stream_version > $2
order by stream_version
limit $3;

-- name: find_by_key :one
-- The event of execution $1 that took effect under idempotency key $2.
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, created_at, producer,
    causation_id, correlation_id, idempotency_key, context, result, error, payload_ref, meta,
    envelope_checksum, exact
from noetl.event
where execution_id = $1 and idempotency_key = $2;

-- name: find_outcome :one
-- What ended the work of run $2 of execution $1: its call, or its loop.
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, created_at, producer,
    causation_id, correlation_id, idempotency_key, context, result, error, payload_ref, meta,
    envelope_checksum, exact
from noetl.event
where execution_id = $1
    and node_id = $2
    and event_type in ('call.done', 'call.error')
    and (context ->> 'item_index')::bigint is null
union all
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, created_at, producer,
    causation_id, correlation_id, idempotency_key, context, result, error, payload_ref, meta,
    envelope_checksum, exact
from noetl.event
where execution_id = $1
    and node_id = $2
    and event_type in ('loop.done', 'loop.failed');

-- name: list_item_results :many
-- At most $4 outcomes of the items of loop epoch $2 of execution $1 after item $3, in item order.
select event_type, schema_version, context, result, error, exact
from noetl.event
where execution_id = $1
    and node_id = $2
    and event_type in ('call.done', 'call.error')
    and (context ->> 'item_index')::bigint > $3
order by (context ->> 'item_index')::bigint, stream_version
limit $4;

-- name: list_failed_items :many
-- At most $4 items of loop epoch $2 of execution $1 that failed, after item $3, in item order.
select event_type, schema_version, context, result, error, exact
from noetl.event
where execution_id = $1
    and node_id = $2
    and event_type in ('call.done', 'call.error')
    and event_type = 'call.error'
    and (context ->> 'item_index')::bigint > $3
order by (context ->> 'item_index')::bigint, stream_version
limit $4;

-- name: list_frame_results :many
-- At most $5 outcomes of the frames of stage $2 of execution $1 after frame $4 of slot $3.
select event_type, schema_version, context, result, error, exact
from noetl.event
where execution_id = $1
    and stage_id = $2
    and event_type in ('frame.committed', 'frame.failed')
    and ((context ->> 'slot')::bigint, (context ->> 'frame_index')::bigint) > ($3, $4)
order by (context ->> 'slot')::bigint, (context ->> 'frame_index')::bigint
limit $5;

-- name: trace :many
-- At most $3 runs: the latest of step $2 in execution $1, the run whose end started it, and so on.
with recursive chain as (
    (
        select
            1 as depth, e.stream_version, e.node_name, e.node_id,
            e.context ->> 'came_from' as came_from, e.context ->> 'stream_of' as stream_of
        from noetl.event as e
        where e.execution_id = $1 and e.event_type = 'step.enter' and e.node_name = $2
        order by e.stream_version desc
        limit 1
    )
    union all
    select
        c.depth + 1, p.stream_version, p.node_name, p.node_id,
        p.context ->> 'came_from', p.context ->> 'stream_of'
    from chain as c
    cross join lateral (
        select coalesce(
            c.stream_of,
            (
                select x.node_id
                from noetl.event as x
                where x.execution_id = $1
                    and x.stream_version < c.stream_version
                    and x.event_type = 'step.exit'
                    and x.node_name = c.came_from
                    and x.context -> 'targets' ? c.node_name
                order by x.stream_version desc
                limit 1
            )
        ) as run_id
    ) as producer
    cross join lateral (
        select e.stream_version, e.node_name, e.node_id, e.context
        from noetl.event as e
        where e.execution_id = $1
            and e.stream_version < c.stream_version
            and e.event_type = 'step.enter'
            and e.node_id = producer.run_id
        order by e.stream_version desc
        limit 1
    ) as p
    where c.depth < $3
)
select
    c.node_name as step, c.node_id as run_id, c.stream_version as entered_version,
    o.event_id, o.result, o.error, o.created_at
from chain as c
left join lateral (
    select e.event_id, e.result, e.error, e.created_at
    from noetl.event as e
    where e.execution_id = $1
        and e.node_id = c.node_id
        and (
            e.event_type in ('loop.done', 'loop.failed')
            or (
                e.event_type in ('call.done', 'call.error')
                and coalesce(e.context -> 'item_index', 'null') = 'null'
            )
        )
    order by e.stream_version desc
    limit 1
) as o on true
order by c.depth;
