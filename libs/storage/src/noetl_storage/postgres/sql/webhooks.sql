-- name: put :exec
-- Keep a webhook; one of the same name is replaced.
insert into noetl.webhook (
    tenant_id, organization_id, name, path, version, credential, inputs, body_bytes_max, is_enabled,
    actor
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
on conflict (tenant_id, organization_id, name) do update
set path = excluded.path,
    version = excluded.version,
    credential = excluded.credential,
    inputs = excluded.inputs,
    body_bytes_max = excluded.body_bytes_max,
    is_enabled = excluded.is_enabled,
    actor = excluded.actor,
    updated_at = now();

-- name: find :one
-- The webhook of tenant $1 and organization $2 that is named $3.
select *
from noetl.webhook
where tenant_id = $1 and organization_id = $2 and name = $3;

-- name: list_webhooks :many
-- At most $3 webhooks of tenant $1 and organization $2, by name.
select *
from noetl.webhook
where tenant_id = $1 and organization_id = $2
order by name collate "C"
limit $3;

-- name: remove :one
-- Remove the webhook of tenant $1 and organization $2 that is named $3.
delete from noetl.webhook
where tenant_id = $1 and organization_id = $2 and name = $3
returning name;
