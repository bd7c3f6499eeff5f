-- name: submit :one
-- Keep a request with its message; see the function.
select noetl.submit_request($1, $2, $3, $4, $5, $6, $7, $8);

-- name: find :one
-- Return a request by its identity.
select
    request_id, execution_id, tenant_id, organization_id, kind, subject, data, idempotency_key
from noetl.request
where request_id = $1;

-- name: find_keyed :one
-- Return what tenant $1 has asked for under idempotency key $2.
select
    request_id, execution_id, tenant_id, organization_id, kind, subject, data, idempotency_key
from noetl.request
where tenant_id = $1 and idempotency_key = $2;

-- name: redrive :one
-- Send at most $2 requests again that wait for longer than $1 seconds; see the function.
select noetl.redrive_requests($1, $2);

-- name: forget :one
-- Delete at most $2 of the reaper's requests that were settled $1 seconds ago; see the function.
select noetl.forget_requests($1, $2);

-- name: keep_letter :many
-- Keep a message from outside; see the function.
select k.reception, k.kept_id
from noetl.keep_letter($1, $2, $3, $4, $5, $6, $7, $8) as k;

-- name: hand_over :one
-- Give a letter to the wait that it is for; see the function.
select noetl.hand_over_letter($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: list_matches :many
-- At most $1 letters that nobody was told of, each with the command that waits longest for it.
select distinct on (i.letter_id)
    i.letter_id, i.tenant_id, i.organization_id, i.address, i.digest, i.data, i.actor,
    c.execution_id, c.command_id, c.step_name, c.status, c.wait, c.heard_at
from noetl.inbox as i
inner join noetl.command as c
    on c.tenant_id = i.tenant_id
    and c.organization_id = i.organization_id
    and c.wait ->> 'address' = i.address
    and c.wait is not null
inner join noetl.execution as e on e.execution_id = c.execution_id
where i.taken_by is null and c.status = 'PARKED' and e.ended_at is null
order by i.letter_id, c.heard_at
limit $1;

-- name: find_letter :one
-- The latest letter of tenant $1 and organization $2 at address $3.
select letter_id, tenant_id, organization_id, address, digest, data, actor
from noetl.inbox
where tenant_id = $1 and organization_id = $2 and address = $3
order by letter_id desc
limit 1;
