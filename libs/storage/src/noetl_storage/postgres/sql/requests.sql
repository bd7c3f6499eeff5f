-- name: submit :one
-- Keep a request with its message; see the function.
select noetl.submit_request($1, $2, $3, $4, $5, $6, $7, $8);

-- name: find :one
-- Return a request by its identity.
select
    request_id, execution_id, tenant_id, organization_id, kind, subject, data, idempotency_key
from noetl.request
where request_id = $1;

-- name: redrive :one
-- Send at most $2 requests again that wait for longer than $1 seconds; see the function.
select noetl.redrive_requests($1, $2);
