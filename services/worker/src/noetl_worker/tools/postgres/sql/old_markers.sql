-- name: claim_pruning :one
-- Take the turn to prune, unless somebody has taken it in the last hour.
insert into noetl_effect as e (execution_id, frame_id)
values ('noetl/pruning', '')
on conflict (execution_id, frame_id) do update
set committed_at = now()
where e.committed_at < now() - interval '1 hour'
returning true;

-- name: bound_statements :exec
-- Let a task wait for no lock, and not long for the rest.
select set_config('lock_timeout', '1s', true), set_config('statement_timeout', '20s', true);

-- name: prune_executions :exec
-- Remove the markers of executions whose latest one is old, and note how far they reached.
with old as (
    select execution_id
    from noetl_effect
    where execution_id <> 'noetl/pruning' and execution_id not like 'stream/%'
    group by execution_id
    having max(committed_at) < now() - make_interval(secs => $1::float8)
    limit 1000
), gone as (
    delete from noetl_effect as e
    using old
    where e.execution_id = old.execution_id
    returning e.committed_at
)
update noetl_effect
set outcome = jsonb_build_object(
    'until',
    greatest((outcome ->> 'until')::timestamptz, (select max(committed_at) from gone))
)
where execution_id = 'noetl/pruning' and exists (select from gone);

-- name: prune_batches :exec
-- Remove the markers of old batches of streams; a later run may ask for the latest one.
delete from noetl_effect
where ctid = any (array(
    select e.ctid
    from noetl_effect as e
    where e.execution_id like 'stream/%'
        and e.committed_at < now() - make_interval(secs => $1::float8)
        and exists (
            select
            from noetl_effect as later
            where later.execution_id = e.execution_id and later.committed_at > e.committed_at
        )
    limit 10000
));

-- name: may_be_pruned :one
-- Tell whether a marker may be gone of an execution that began at a moment.
-- One of which an older marker is left has lost none: they go together.
select coalesce(
    to_timestamp($2::float8) < (p.outcome ->> 'until')::timestamptz
    and not exists (
        select
        from noetl_effect as e
        where e.execution_id = $1 and e.committed_at <= (p.outcome ->> 'until')::timestamptz
    ),
    false
)
from noetl_effect as p
where p.execution_id = 'noetl/pruning' and p.frame_id = '';
