-- name: list_objects :many
-- At most $8 objects of tenant $1 and organization $2 behind type $6 and id $7, the latest row of each:
-- of type $3, of execution $4, with those that are removed if $5.
select
    o.execution_id, o.object_id, o.tenant_id, o.organization_id, o.object_type, o.status, o.version,
    o.attributes, o.payload_refs, o.first_event_id, o.last_event_id, o.is_deleted, o.created_at,
    o.updated_at
from (
    select distinct on (b.object_type, b.object_id) b.*
    from noetl.business_object as b
    where b.tenant_id = $1
        and b.organization_id = $2
        and ($3::text is null or b.object_type = $3)
        and ($4::bigint is null or b.execution_id = $4)
        and (b.object_type, b.object_id) > ($6, $7)
    order by b.object_type, b.object_id, b.updated_at desc, b.execution_id desc
) as o
where $5::boolean or o.is_deleted is not true
order by o.object_type, o.object_id
limit $8;

-- name: list_of_object :many
-- At most $5 rows of object $4 of type $3 of tenant $1 and organization $2, the latest first.
select
    execution_id, object_id, tenant_id, organization_id, object_type, status, version, attributes,
    payload_refs, first_event_id, last_event_id, is_deleted, created_at, updated_at
from noetl.business_object
where tenant_id = $1 and organization_id = $2 and object_type = $3 and object_id = $4
order by updated_at desc, execution_id desc
limit $5;

-- name: has_beginning :one
-- Whether the ledger has history $1 from its first event on.
select exists (
    select from noetl.event
    where execution_id = $1 and stream_version = 1
);

-- name: list_changes :many
-- At most $5 changes of object $2 in history $1 after version $3 and up to $4.
select
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, created_at, producer,
    causation_id, correlation_id, idempotency_key, context, result, error, payload_ref, meta,
    envelope_checksum, exact
from noetl.event
where execution_id = $1
    and aggregate_id = 'business_object/' || $2
    and event_type = 'business_object.changed'
    and stream_version > $3
    and stream_version <= $4
order by stream_version
limit $5;
