-- name: register :one
-- Lease or extend a node number for instance $1 of service $2; see the function.
select noetl.register_instance($1, $2, $3);

-- name: list_live :many
-- The live instances of service $1.
select instance
from noetl.runtime
where kind = $1 and leased_until > clock_timestamp()
order by instance collate "C";

-- name: lead :one
-- Take or extend the lease of $2 on role $1; see the function.
select noetl.lead_role($1, $2, $3);
