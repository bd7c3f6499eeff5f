-- name: record :one
-- Keep that $12 did $1 about letter $2 of owner $3, $4, and why ($13).
insert into noetl.dead_letter_log (
    action, sequence, tenant_id, organization_id, stream, consumer, subject, reason, delivered,
    requeued, sha256, who, why
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
returning
    act_id, acted_at, action, sequence, tenant_id, organization_id, stream, consumer, subject, reason,
    delivered, requeued, sha256, who, why;

-- name: find_last :one
-- The latest act on letter $1 of owner $2, $3.
select
    act_id, acted_at, action, sequence, tenant_id, organization_id, stream, consumer, subject, reason,
    delivered, requeued, sha256, who, why
from noetl.dead_letter_log
where sequence = $1 and tenant_id = $2 and organization_id = $3
order by act_id desc
limit 1;

-- name: list_acts :many
-- At most $4 acts of owner $1, $2, the latest first, perhaps those before number $3.
select
    act_id, acted_at, action, sequence, tenant_id, organization_id, stream, consumer, subject, reason,
    delivered, requeued, sha256, who, why
from noetl.dead_letter_log
where tenant_id = $1 and organization_id = $2 and ($3::bigint is null or act_id < $3)
order by act_id desc
limit $4;
