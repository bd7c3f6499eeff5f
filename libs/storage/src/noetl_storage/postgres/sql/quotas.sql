-- name: put_quota :exec
-- Keep what tenant $1 may use at most, instead of what it might before.
insert into noetl.tenant_quota (tenant_id, running_max, calls_per_s)
values ($1, $2, $3)
on conflict (tenant_id) do update
set running_max = excluded.running_max, calls_per_s = excluded.calls_per_s, changed_at = now();

-- name: remove_quota :exec
-- Bound tenant $1 no more.
delete from noetl.tenant_quota
where tenant_id = $1;

-- name: list_quotas :many
-- The quotas, by tenant; at most $1.
select tenant_id, running_max, calls_per_s
from noetl.tenant_quota
order by tenant_id
limit $1;

-- name: find_quota :one
-- What tenant $1 may use at most.
select tenant_id, running_max, calls_per_s
from noetl.tenant_quota
where tenant_id = $1;

-- name: count_running :one
-- How many executions of tenant $1 have not ended; no more than $2 are counted.
select count(*)::integer as running
from (
    select from noetl.execution
    where tenant_id = $1 and status in ('PENDING', 'RUNNING', 'PAUSED')
    limit $2
) as begun;
