-- name: put :one
-- Keep a schedule; one of the same name keeps its identity, its past, and grows its revision.
insert into noetl.schedule as s (
    schedule_id, tenant_id, organization_id, name, path, version, workload, cron, timezone,
    catch_up, catch_up_max, overlap, is_enabled, next_at, actor
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
on conflict (tenant_id, organization_id, name) do update
set path = excluded.path,
    version = excluded.version,
    workload = excluded.workload,
    cron = excluded.cron,
    timezone = excluded.timezone,
    catch_up = excluded.catch_up,
    catch_up_max = excluded.catch_up_max,
    overlap = excluded.overlap,
    is_enabled = excluded.is_enabled,
    next_at = excluded.next_at,
    actor = excluded.actor,
    revision = s.revision + 1,
    updated_at = now()
returning *;

-- name: find :one
-- The schedule of tenant $1 and organization $2 that is named $3.
select *
from noetl.schedule
where tenant_id = $1 and organization_id = $2 and name = $3;

-- name: list_schedules :many
-- At most $3 schedules of tenant $1 and organization $2, by name.
select *
from noetl.schedule
where tenant_id = $1 and organization_id = $2
order by name collate "C"
limit $3;

-- name: switch :one
-- Enable or disable schedule $1 as long as its revision is $2, with a new next time.
update noetl.schedule
set is_enabled = $3, next_at = $4, revision = revision + 1, updated_at = now()
where schedule_id = $1 and revision = $2
returning schedule_id;

-- name: remove :one
-- Remove the schedule of tenant $1 and organization $2 that is named $3.
delete from noetl.schedule
where tenant_id = $1 and organization_id = $2 and name = $3
returning schedule_id;

-- name: list_due :many
-- At most $2 enabled schedules whose next time is not after $1, the longest due first; those of a
-- suspended tenant wait.
select *
from noetl.schedule as s
where
    is_enabled and cron is not null and next_at <= $1
    and not exists (
        select from noetl.tenant_quota as q where q.tenant_id = s.tenant_id and q.is_suspended
    )
order by next_at, schedule_id
limit $2;

-- name: fire :one
-- Ask for the execution of a nominal time and move on; see the function.
select noetl.fire_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: skip :one
-- Move on without an execution and record the times that are passed over; see the function.
select noetl.skip_schedule_times($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: list_skips :many
-- Of each schedule in $1 the newest $2 runs of times that were passed over, newest first.
select k.*
from unnest($1::bigint []) as wanted (schedule_id)
cross join lateral (
    select *
    from noetl.schedule_skip as s
    where s.schedule_id = wanted.schedule_id
    order by s.first_at desc
    limit $2
) as k
order by k.schedule_id, k.first_at desc;
