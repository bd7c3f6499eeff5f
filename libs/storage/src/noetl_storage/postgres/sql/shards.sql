-- name: claim :many
-- Take shards until $3 of $4 are held by $1 for $2 seconds; see the function.
select shard_id, owner_instance, epoch, leased_until
from noetl.claim_shards($1, $2, $3, $4);

-- name: extend :many
-- Extend what $1 still holds by $2 seconds from now.
update noetl.execution_shard
set leased_until = clock_timestamp() + make_interval(secs => $2), updated_at = now()
where owner_instance = $1 and leased_until > clock_timestamp()
returning shard_id, owner_instance, epoch, leased_until;

-- name: release :exec
-- End the lease of $1 on the shards $2.
update noetl.execution_shard
set owner_instance = null, leased_until = null, updated_at = now()
where owner_instance = $1 and shard_id = any($2::integer[]);

-- name: list_owners :many
-- Every owner with a live lease, and how many shards it holds.
select owner_instance, count(*) as shards
from noetl.execution_shard
where leased_until > clock_timestamp()
group by owner_instance;
