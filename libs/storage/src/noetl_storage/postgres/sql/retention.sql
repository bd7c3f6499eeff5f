-- name: find_archived :many
-- What has left the ledger of history $1, with the units that hold it.
select
    a.execution_id, a.first_version, a.last_version, a.previous, a.checksum, a.left_at,
    u.manifest_id, u.tenant_id, u.organization_id, u.month, u.action, u.status, u.partition_name,
    u.histories, u.events, u.fold_version, u.upcaster_digest, u.planned_at, u.manifest_sha256,
    u.dropped_at
from noetl.archived_history as a
inner join noetl.archive_unit as u on u.manifest_id = a.manifest_id
where a.execution_id = $1 and a.left_at is not null
order by a.first_version;

-- name: place_hold :one
-- Hold execution $3, or all of owner $1, $2.
select noetl.place_hold($1, $2, $3, $4, $5);

-- name: release_hold :one
-- End the open hold of execution $3, or of owner $1, $2.
select noetl.release_hold($1, $2, $3, $4, $5);

-- name: list_holds :many
-- At most $4 holds of owner $1, $2, with those that have ended if $3, the latest first.
select
    hold_id, tenant_id, organization_id, execution_id, reason, held_by, held_at, released_by,
    release_reason, released_at
from noetl.legal_hold
where tenant_id = $1 and organization_id = $2 and ($3 or released_at is null)
order by hold_id desc
limit $4;

-- name: find_policy :one
-- The policy of owner $1, $2.
select tenant_id, organization_id, keep_days, action, set_by, set_at
from noetl.retention_policy
where tenant_id = $1 and organization_id = $2;

-- name: set_policy :exec
-- Set the policy of owner $1, $2.
select noetl.set_retention($1, $2, $3, $4, $5);

-- name: list_units :many
-- At most $3 units of owner $1, $2, the latest first.
select
    manifest_id, tenant_id, organization_id, month, action, status, partition_name, histories,
    events, fold_version, upcaster_digest, planned_at, manifest_sha256, dropped_at
from noetl.archive_unit
where tenant_id = $1 and organization_id = $2
order by manifest_id desc
limit $3;

-- name: list_owners :many
-- Whose histories the ledger has.
select distinct h.tenant_id, h.organization_id
from noetl.list_places() as l
inner join noetl.execution_head as h on h.execution_id >= l.low and h.execution_id < l.high
order by h.tenant_id, h.organization_id;

-- name: count_due :many
-- How many histories of owner $1, $2 may leave the ledger, ended $3 seconds ago, by month.
select
    noetl.month_of(d.execution_id) as month,
    count(*) as histories,
    sum(d.last_version - d.first_version + 1)::bigint as events
from noetl.list_due($1, $2, $3, null) as d
group by 1
order by 1;

-- name: leave_out :exec
-- Take history $2 out of the planned unit $1, and hold it for reason $3.
select noetl.leave_out($1, $2, $3);

-- name: plan :one
-- Plan a unit; see the function.
select noetl.plan_archive($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: find_unit :one
-- Unit $1.
select
    manifest_id, tenant_id, organization_id, month, action, status, partition_name, histories,
    events, fold_version, upcaster_digest, planned_at, manifest_sha256, dropped_at
from noetl.archive_unit
where manifest_id = $1;

-- name: list_open :many
-- At most $2 units after $1 that are not done with.
select
    manifest_id, tenant_id, organization_id, month, action, status, partition_name, histories,
    events, fold_version, upcaster_digest, planned_at, manifest_sha256, dropped_at
from noetl.archive_unit
where manifest_id > $1 and status <> 'dropped'
order by manifest_id
limit $2;

-- name: list_spans :many
-- What unit $1 holds, by execution.
select execution_id, first_version, last_version, previous, checksum, left_at
from noetl.archived_history
where manifest_id = $1
order by execution_id;

-- name: advance :one
-- Take note that unit $1 is now $2, with the digest $3 of its manifest.
select noetl.advance_archive($1, $2, $3);

-- name: compact :one
-- Take the next step with unit $1; see the function.
select reached, histories, events
from noetl.compact($1, $2, $3);
