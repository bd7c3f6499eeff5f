-- name: put :exec
-- Keep a trigger; one of the same name is replaced.
insert into noetl.trigger (
    tenant_id, organization_id, name, subject, path, version, inputs, body_bytes_max, is_enabled,
    filter, max_in_flight, actor
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
on conflict (tenant_id, organization_id, name) do update
set subject = excluded.subject,
    path = excluded.path,
    version = excluded.version,
    inputs = excluded.inputs,
    body_bytes_max = excluded.body_bytes_max,
    is_enabled = excluded.is_enabled,
    filter = excluded.filter,
    max_in_flight = excluded.max_in_flight,
    actor = excluded.actor,
    updated_at = now();

-- name: find :one
-- The trigger of tenant $1 and organization $2 that is named $3.
select *
from noetl.trigger
where tenant_id = $1 and organization_id = $2 and name = $3;

-- name: list_triggers :many
-- At most $3 triggers of tenant $1 and organization $2, by name.
select *
from noetl.trigger
where tenant_id = $1 and organization_id = $2
order by name collate "C"
limit $3;

-- name: remove :one
-- Remove the trigger of tenant $1 and organization $2 that is named $3.
delete from noetl.trigger
where tenant_id = $1 and organization_id = $2 and name = $3
returning name;

-- name: claim_place :one
-- The execution of message $4 of trigger $3, or null while all its places are taken; see the function.
select noetl.claim_trigger_place($1, $2, $3, $4, $5, $6);

-- name: release_place :exec
-- Give the place of message $4 of trigger $3 back.
delete from noetl.trigger_place
where tenant_id = $1 and organization_id = $2 and trigger_name = $3 and message_key = $4;
