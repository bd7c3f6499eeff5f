-- name: upsert_execution :exec
-- Write the execution rows $1, a JSON array, of the executions $2.
insert into noetl.execution as t (
    execution_id, tenant_id, organization_id, parent_execution_id, path, catalog_id,
    catalog_version, status, current_step, completed_steps, workload, variables, error, result,
    frames, rows, warnings, last_event_id, last_event_type, version, envelope_checksum,
    started_at, updated_at, ended_at, late
)
select
    r.execution_id, r.tenant_id, r.organization_id, r.parent_execution_id, r.path, r.catalog_id,
    r.catalog_version, r.status, r.current_step, r.completed_steps, r.workload, r.variables,
    r.error, r.result, r.frames, r.rows, r.warnings, r.last_event_id, r.last_event_type,
    r.version, r.envelope_checksum, r.started_at, r.updated_at, r.ended_at, r.late
from json_populate_recordset(null::noetl.execution, $1::json) as r
where r.execution_id = any($2::bigint[])
on conflict (execution_id) do update
set tenant_id = excluded.tenant_id,
    organization_id = excluded.organization_id,
    parent_execution_id = excluded.parent_execution_id,
    path = excluded.path,
    catalog_id = excluded.catalog_id,
    catalog_version = excluded.catalog_version,
    status = excluded.status,
    current_step = excluded.current_step,
    completed_steps = excluded.completed_steps,
    workload = excluded.workload,
    variables = excluded.variables,
    error = excluded.error,
    result = excluded.result,
    frames = excluded.frames,
    rows = excluded.rows,
    warnings = excluded.warnings,
    last_event_id = excluded.last_event_id,
    last_event_type = excluded.last_event_type,
    version = excluded.version,
    envelope_checksum = excluded.envelope_checksum,
    started_at = excluded.started_at,
    updated_at = excluded.updated_at,
    ended_at = excluded.ended_at,
    late = excluded.late,
    projected_at = now();

-- name: list_execution :many
-- At most $3 execution rows of execution $1 after key $2, in key order; null: all that follow.
select
    execution_id, tenant_id, organization_id, parent_execution_id, path, catalog_id,
    catalog_version, status, current_step, completed_steps, workload, variables, error, result,
    frames, rows, warnings, last_event_id, last_event_type, version, envelope_checksum,
    started_at, updated_at, ended_at, late
from noetl.execution
where execution_id = $1 and execution_id > $2
order by execution_id
limit $3;

-- name: clear_execution :exec
-- Forget the execution rows of execution $1.
delete from noetl.execution
where execution_id = $1;

-- name: upsert_stage :exec
-- Write the stage rows $1, a JSON array, of the executions $2.
insert into noetl.stage as t (
    execution_id, stage_id, tenant_id, organization_id, parent_stage_id, run_id, step_name, kind,
    status, slots, frame_policy, frames, frames_failed, rows, rows_failed, opened_event_id,
    closed_event_id, started_at, ended_at
)
select
    r.execution_id, r.stage_id, r.tenant_id, r.organization_id, r.parent_stage_id, r.run_id,
    r.step_name, r.kind, r.status, r.slots, r.frame_policy, r.frames, r.frames_failed, r.rows,
    r.rows_failed, r.opened_event_id, r.closed_event_id, r.started_at, r.ended_at
from json_populate_recordset(null::noetl.stage, $1::json) as r
where r.execution_id = any($2::bigint[])
on conflict (execution_id, stage_id) do update
set tenant_id = excluded.tenant_id,
    organization_id = excluded.organization_id,
    parent_stage_id = excluded.parent_stage_id,
    run_id = excluded.run_id,
    step_name = excluded.step_name,
    kind = excluded.kind,
    status = excluded.status,
    slots = excluded.slots,
    frame_policy = excluded.frame_policy,
    frames = excluded.frames,
    frames_failed = excluded.frames_failed,
    rows = excluded.rows,
    rows_failed = excluded.rows_failed,
    opened_event_id = excluded.opened_event_id,
    closed_event_id = excluded.closed_event_id,
    started_at = excluded.started_at,
    ended_at = excluded.ended_at,
    projected_at = now();

-- name: list_stage :many
-- At most $3 stage rows of execution $1 after key $2, in key order; null: all that follow.
select
    execution_id, stage_id, tenant_id, organization_id, parent_stage_id, run_id, step_name, kind,
    status, slots, frame_policy, frames, frames_failed, rows, rows_failed, opened_event_id,
    closed_event_id, started_at, ended_at
from noetl.stage
where execution_id = $1 and stage_id > $2
order by stage_id
limit $3;

-- name: clear_stage :exec
-- Forget the stage rows of execution $1.
delete from noetl.stage
where execution_id = $1;

-- name: upsert_frame :exec
-- Write the frame rows $1, a JSON array, of the executions $2.
insert into noetl.frame as t (
    execution_id, frame_id, stage_id, tenant_id, organization_id, parent_frame_id, command_id,
    claimed_event_id, terminal_event_id, cursor, row_count, rows_failed, status, owner_worker,
    output_ref, attempts, created_at, completed_at
)
select
    r.execution_id, r.frame_id, r.stage_id, r.tenant_id, r.organization_id, r.parent_frame_id,
    r.command_id, r.claimed_event_id, r.terminal_event_id, r.cursor, r.row_count, r.rows_failed,
    r.status, r.owner_worker, r.output_ref, r.attempts, r.created_at, r.completed_at
from json_populate_recordset(null::noetl.frame, $1::json) as r
where r.execution_id = any($2::bigint[])
on conflict (execution_id, frame_id) do update
set stage_id = excluded.stage_id,
    tenant_id = excluded.tenant_id,
    organization_id = excluded.organization_id,
    parent_frame_id = excluded.parent_frame_id,
    command_id = excluded.command_id,
    claimed_event_id = excluded.claimed_event_id,
    terminal_event_id = excluded.terminal_event_id,
    cursor = excluded.cursor,
    row_count = excluded.row_count,
    rows_failed = excluded.rows_failed,
    status = excluded.status,
    owner_worker = excluded.owner_worker,
    output_ref = excluded.output_ref,
    attempts = excluded.attempts,
    created_at = excluded.created_at,
    completed_at = excluded.completed_at,
    projected_at = now();

-- name: list_frame :many
-- At most $3 frame rows of execution $1 after key $2, in key order; null: all that follow.
select
    execution_id, frame_id, stage_id, tenant_id, organization_id, parent_frame_id, command_id,
    claimed_event_id, terminal_event_id, cursor, row_count, rows_failed, status, owner_worker,
    output_ref, attempts, created_at, completed_at
from noetl.frame
where execution_id = $1 and frame_id > $2
order by frame_id
limit $3;

-- name: list_frames :many
-- At most $5 frame rows of execution $1 after $4, of stage $2 and with status $3 if they are given.
select
    execution_id, frame_id, stage_id, tenant_id, organization_id, parent_frame_id, command_id,
    claimed_event_id, terminal_event_id, cursor, row_count, rows_failed, status, owner_worker,
    output_ref, attempts, created_at, completed_at
from noetl.frame
where execution_id = $1
    and ($2::bigint is null or stage_id = $2)
    and ($3::text is null or status = $3)
order by frame_id
offset $4
limit $5;

-- name: bin_frames :many
-- The frames of each stage of execution $1, shared out over at most $2 bins, and each stage whole.
with binned as (
    select
        stage_id, frame_id, status, row_count,
        ntile($2) over (partition by stage_id order by frame_id) as place,
        case
            when completed_at < created_at then 0
            else extract(epoch from completed_at - created_at)
        end::float8 as duration_s
    from noetl.frame
    where execution_id = $1
)
select
    grouping(place) = 1 as is_whole, stage_id, coalesce(place, 1) as place, count(*) as frames,
    count(*) filter (where status = 'COMPLETED') as done,
    count(*) filter (where status in ('FAILED', 'ABANDONED')) as failed,
    count(*) filter (where status = 'CANCELLED') as cancelled,
    count(*) filter (where status in ('PENDING', 'CLAIMED', 'RUNNING')) as running,
    coalesce(sum(row_count), 0)::bigint as rows,
    min(duration_s) as min_s,
    percentile_disc(0.5) within group (order by duration_s) as p50_s,
    percentile_disc(0.95) within group (order by duration_s) as p95_s,
    max(duration_s) as max_s,
    min(frame_id)::text as first, max(frame_id)::text as last
from binned
group by grouping sets ((stage_id, place), (stage_id))
order by stage_id, place;

-- name: count_frames :one
-- How many frames execution $1 has, of stage $2 and with status $3 if they are given.
select count(*)
from noetl.frame
where execution_id = $1
    and ($2::bigint is null or stage_id = $2)
    and ($3::text is null or status = $3);

-- name: clear_frame :exec
-- Forget the frame rows of execution $1.
delete from noetl.frame
where execution_id = $1;

-- name: upsert_command :exec
-- Write the command rows $1, a JSON array, of the executions $2.
insert into noetl.command as t (
    execution_id, command_id, tenant_id, organization_id, run_id, step_name, unit, pool, lane,
    stage_id, status, attempts, worker_id, worker_locator, locality, rejected, issued_event_id,
    started_event_id, terminal_event_id, issued_at, heard_at, completed_at, wait
)
select
    r.execution_id, r.command_id, r.tenant_id, r.organization_id, r.run_id, r.step_name, r.unit,
    r.pool, r.lane, r.stage_id, r.status, r.attempts, r.worker_id, r.worker_locator, r.locality,
    r.rejected, r.issued_event_id, r.started_event_id, r.terminal_event_id, r.issued_at,
    r.heard_at, r.completed_at, r.wait
from json_populate_recordset(null::noetl.command, $1::json) as r
where r.execution_id = any($2::bigint[])
on conflict (execution_id, command_id) do update
set tenant_id = excluded.tenant_id,
    organization_id = excluded.organization_id,
    run_id = excluded.run_id,
    step_name = excluded.step_name,
    unit = excluded.unit,
    pool = excluded.pool,
    lane = excluded.lane,
    stage_id = excluded.stage_id,
    status = excluded.status,
    attempts = excluded.attempts,
    worker_id = excluded.worker_id,
    worker_locator = excluded.worker_locator,
    locality = excluded.locality,
    rejected = excluded.rejected,
    issued_event_id = excluded.issued_event_id,
    started_event_id = excluded.started_event_id,
    terminal_event_id = excluded.terminal_event_id,
    issued_at = excluded.issued_at,
    heard_at = excluded.heard_at,
    completed_at = excluded.completed_at,
    wait = excluded.wait,
    projected_at = now();

-- name: list_command :many
-- At most $3 command rows of execution $1 after key $2, in key order; null: all that follow.
select
    execution_id, command_id, tenant_id, organization_id, run_id, step_name, unit, pool, lane,
    stage_id, status, attempts, worker_id, worker_locator, locality, rejected, issued_event_id,
    started_event_id, terminal_event_id, issued_at, heard_at, completed_at, wait
from noetl.command
where execution_id = $1 and command_id > $2
order by command_id
limit $3;

-- name: list_commands :many
-- The command rows $2 of execution $1 that are there.
select
    execution_id, command_id, tenant_id, organization_id, run_id, step_name, unit, pool, lane,
    stage_id, status, attempts, worker_id, worker_locator, locality, rejected, issued_event_id,
    started_event_id, terminal_event_id, issued_at, heard_at, completed_at, wait
from noetl.command
where execution_id = $1
    and command_id = any($2::bigint[]);

-- name: clear_command :exec
-- Forget the command rows of execution $1.
delete from noetl.command
where execution_id = $1;

-- name: upsert_loop :exec
-- Write the loop rows $1, a JSON array, of the executions $2.
insert into noetl.loop as t (
    execution_id, run_id, tenant_id, organization_id, step_name, mode, status, stage_id, total,
    done, failed, in_flight, is_finished, last_event_id, started_at
)
select
    r.execution_id, r.run_id, r.tenant_id, r.organization_id, r.step_name, r.mode, r.status,
    r.stage_id, r.total, r.done, r.failed, r.in_flight, r.is_finished, r.last_event_id,
    r.started_at
from json_populate_recordset(null::noetl.loop, $1::json) as r
where r.execution_id = any($2::bigint[])
on conflict (execution_id, run_id) do update
set tenant_id = excluded.tenant_id,
    organization_id = excluded.organization_id,
    step_name = excluded.step_name,
    mode = excluded.mode,
    status = excluded.status,
    stage_id = excluded.stage_id,
    total = excluded.total,
    done = excluded.done,
    failed = excluded.failed,
    in_flight = excluded.in_flight,
    is_finished = excluded.is_finished,
    last_event_id = excluded.last_event_id,
    started_at = excluded.started_at,
    projected_at = now();

-- name: list_loop :many
-- At most $3 loop rows of execution $1 after key $2, in key order; null: all that follow.
select
    execution_id, run_id, tenant_id, organization_id, step_name, mode, status, stage_id, total,
    done, failed, in_flight, is_finished, last_event_id, started_at
from noetl.loop
where execution_id = $1 and run_id > $2
order by run_id
limit $3;

-- name: clear_loop :exec
-- Forget the loop rows of execution $1.
delete from noetl.loop
where execution_id = $1;

-- name: upsert_business_object :exec
-- Write the business object rows $1, a JSON array, of the executions $2.
insert into noetl.business_object as t (
    execution_id, object_id, tenant_id, organization_id, object_type, status, version,
    attributes, payload_refs, first_event_id, last_event_id, is_deleted, created_at, updated_at
)
select
    r.execution_id, r.object_id, r.tenant_id, r.organization_id, r.object_type, r.status,
    r.version, r.attributes, r.payload_refs, r.first_event_id, r.last_event_id, r.is_deleted,
    r.created_at, r.updated_at
from json_populate_recordset(null::noetl.business_object, $1::json) as r
where r.execution_id = any($2::bigint[])
on conflict (execution_id, object_id) do update
set tenant_id = excluded.tenant_id,
    organization_id = excluded.organization_id,
    object_type = excluded.object_type,
    status = excluded.status,
    version = excluded.version,
    attributes = excluded.attributes,
    payload_refs = excluded.payload_refs,
    first_event_id = excluded.first_event_id,
    last_event_id = excluded.last_event_id,
    is_deleted = excluded.is_deleted,
    created_at = excluded.created_at,
    updated_at = excluded.updated_at,
    projected_at = now();

-- name: list_business_object :many
-- At most $3 business object rows of execution $1 after key $2, in key order; null: all that follow.
select
    execution_id, object_id, tenant_id, organization_id, object_type, status, version,
    attributes, payload_refs, first_event_id, last_event_id, is_deleted, created_at, updated_at
from noetl.business_object
where execution_id = $1 and object_id > $2
order by object_id
limit $3;

-- name: clear_business_object :exec
-- Forget the business object rows of execution $1.
delete from noetl.business_object
where execution_id = $1;

-- name: list_positions :many
-- The version up to which each of the executions $1 is projected.
select execution_id, version
from noetl.projection_position
where execution_id = any($1::bigint[]);

-- name: apply :many
-- Move the executions $2 of shard $1 from versions $3 to $4, write the rows $5 and following of
-- those that were there, a parameter for each surface, and return them. Surfaces are written by the
-- statements above, of which each stands in the place of the comment.
with wanted as (
    select w.execution_id, w.old, w.new
    from unnest($2::bigint[], $3::bigint[], $4::bigint[]) as w (execution_id, old, new)
),
begun as (
    insert into noetl.projection_position (execution_id, shard_id, version)
    select w.execution_id, $1, w.new
    from wanted as w
    where w.old = 0
    order by w.execution_id
    on conflict do nothing
    returning execution_id
),
continued as (
    update noetl.projection_position as p
    set version = w.new, shard_id = $1, updated_at = now()
    from wanted as w
    where p.execution_id = w.execution_id and p.version = w.old and w.old > 0
    returning p.execution_id
),
moved as (
    select b.execution_id from begun as b
    union all
    select c.execution_id from continued as c
),
/* surfaces */
noted as (
    insert into noetl.projection_checkpoint as c (
        shard_id, last_projected_event_id, last_projected_at, lag_ms
    )
    select
        $1, coalesce(max(r.last_event_id), 0), now(),
        extract(epoch from now() - max(r.updated_at)) * 1000
    from json_populate_recordset(null::noetl.execution, $5::json) as r
    inner join moved as m on m.execution_id = r.execution_id
    having count(*) > 0
    on conflict (shard_id) do update
    set last_projected_event_id = greatest(
            c.last_projected_event_id, excluded.last_projected_event_id
        ),
        last_projected_at = excluded.last_projected_at,
        lag_ms = excluded.lag_ms
)
select execution_id from moved;

-- name: clear_position :exec
-- Forget how far execution $1 is projected.
delete from noetl.projection_position
where execution_id = $1;

-- name: list_behind :many
-- At most $4 executions of shard $1 of $2 whose ledger has been ahead for $3 seconds, of those
-- that were appended to since $5.
-- What has left the ledger cannot be read there: `noetl projection rebuild` reads the archive.
-- A shard's number takes microseconds: it is asked for those alone that are behind.
with behind as materialized (
    select h.execution_id, h.updated_at
    from noetl.execution_head as h
    left join noetl.projection_position as p on p.execution_id = h.execution_id
    where h.version > coalesce(p.version, 0)
        and h.updated_at < now() - make_interval(secs => $3)
        and h.updated_at >= $5::timestamptz
        and not exists (
            select from noetl.archived_history as a
            where a.execution_id = h.execution_id
                and a.left_at is not null
                and a.last_version > coalesce(p.version, 0)
        )
)
select b.execution_id
from behind as b
where noetl.shard_of(b.execution_id, $2) = $1
order by b.updated_at
limit $4;

-- name: list_executions :many
-- At most $6 executions of tenant $1 and organization $2, newest first, before $5, begun since $7;
-- see the function.
select
    e.execution_id, e.tenant_id, e.organization_id, e.parent_execution_id, e.path, e.catalog_id,
    e.catalog_version, e.status, e.current_step, e.completed_steps, e.workload, e.variables,
    e.error, e.result, e.frames, e.rows, e.warnings, e.last_event_id, e.last_event_type,
    e.version, e.envelope_checksum, e.started_at, e.updated_at, e.ended_at, e.late
from noetl.list_executions($1, $2, $3, $4, $5, $6, $7) as e
order by e.execution_id desc;

-- name: list_overdue :many
-- Of live executions' commands of which nothing was heard for $1 seconds at most $2 that wait and $2
-- that run in each place: many of one place hide none of another.
with recursive places as (
    (
        select c.status, c.pool, c.lane, c.tenant_id
        from noetl.command as c
        where c.status in ('ISSUED', 'RUNNING')
        order by c.status, c.pool, c.lane, c.tenant_id
        limit 1
    )
    union all
    select following.status, following.pool, following.lane, following.tenant_id
    from places as p
    cross join lateral (
        select c.status, c.pool, c.lane, c.tenant_id
        from noetl.command as c
        where c.status in ('ISSUED', 'RUNNING')
            and (c.status, c.pool, c.lane, c.tenant_id) > (p.status, p.pool, p.lane, p.tenant_id)
        order by c.status, c.pool, c.lane, c.tenant_id
        limit 1
    ) as following
)

select
    o.execution_id, o.tenant_id, o.organization_id, o.command_id, o.attempts, o.status, o.pool,
    o.lane
from places as p
cross join lateral (
    select
        c.execution_id, c.tenant_id, c.organization_id, c.command_id, c.attempts, c.status, c.pool,
        c.lane, c.heard_at
    from noetl.command as c
    inner join noetl.execution as e on e.execution_id = c.execution_id
    where c.status in ('ISSUED', 'RUNNING')
        and c.status = p.status
        and c.pool = p.pool
        and c.lane = p.lane
        and c.tenant_id = p.tenant_id
        and c.heard_at < now() - make_interval(secs => $1)
        and e.ended_at is null
    order by c.heard_at
    limit $2
) as o
order by o.heard_at;

-- name: count_live_commands :many
-- Live executions' commands that wait or run, by whose they are and the kind of their stage.
select
    c.tenant_id, c.organization_id, coalesce(s.kind, 'step') as stage_kind, c.status,
    count(*) as commands
from noetl.command as c
inner join noetl.execution as e on e.execution_id = c.execution_id
left join noetl.stage as s on s.execution_id = c.execution_id and s.stage_id = c.stage_id
where c.status in ('ISSUED', 'RUNNING') and e.ended_at is null
group by c.tenant_id, c.organization_id, coalesce(s.kind, 'step'), c.status;

-- name: find_frame :many
-- The row of frame $2 of execution $1.
select
    execution_id, frame_id, stage_id, tenant_id, organization_id, parent_frame_id, command_id,
    claimed_event_id, terminal_event_id, cursor, row_count, rows_failed, status, owner_worker,
    output_ref, attempts, created_at, completed_at
from noetl.frame
where execution_id = $1 and frame_id = $2;

-- name: list_issued :many
-- At most $5 commands that nobody has begun of tenant $1 and organization $2: of execution $3, of
-- stage $4, if given.
select
    c.execution_id, c.command_id, c.stage_id, c.step_name, c.pool, c.lane, c.heard_at
from noetl.command as c
inner join noetl.execution as e on e.execution_id = c.execution_id
where c.tenant_id = $1
    and c.organization_id = $2
    and c.status = 'ISSUED'
    and ($3::bigint is null or c.execution_id = $3)
    and ($4::bigint is null or c.stage_id = $4)
    and e.ended_at is null
    and e.status <> 'PAUSED'
order by c.heard_at
limit $5;

-- name: list_urgent :many
-- At most $5 commands that nobody has begun of tenant $1 and organization $2 in pools $3, by the
-- lanes $4: each lane is asked by itself, so that many in one hide none of another.
select
    c.execution_id, c.command_id, c.stage_id, c.step_name, c.pool, c.lane, c.heard_at
from unnest($3::text []) as asked (pool)
cross join unnest($4::text []) with ordinality as urgent (lane, place)
cross join lateral (
    select
        c.execution_id, c.command_id, c.stage_id, c.step_name, c.pool, c.lane, c.heard_at
    from noetl.command as c
    inner join noetl.execution as e on e.execution_id = c.execution_id
    where c.pool = asked.pool
        and c.lane = urgent.lane
        and c.tenant_id = $1
        and c.organization_id = $2
        and c.status = 'ISSUED'
        and e.ended_at is null
        and e.status <> 'PAUSED'
    order by c.heard_at
    limit $5
) as c
order by urgent.place, c.heard_at
limit $5;

-- name: list_leased :many
-- At most $5 commands of tenant $1 and organization $2 that workers run, of worker $3 and of
-- execution $4 if given, the longest running first; of those that run frames the frame too.
select
    c.execution_id, e.path, c.command_id, c.stage_id, f.frame_id, c.step_name, c.attempts,
    c.worker_id, c.pool, c.lane, c.started_event_id, c.heard_at, s.frame_policy
from noetl.command as c
inner join noetl.execution as e on e.execution_id = c.execution_id
left join noetl.stage as s on s.execution_id = c.execution_id and s.stage_id = c.stage_id
left join lateral (
    select max(f.frame_id) as frame_id
    from noetl.frame as f
    where f.execution_id = c.execution_id
        and f.command_id = c.command_id
        and f.status in ('CLAIMED', 'RUNNING')
) as f on true
where c.tenant_id = $1
    and c.organization_id = $2
    and c.status = 'RUNNING'
    and ($3::text is null or c.worker_id = $3)
    and ($4::bigint is null or c.execution_id = $4)
    and e.ended_at is null
order by c.started_event_id, c.command_id
limit $5;

-- name: list_waits :many
-- At most $6 waits of tenant $1 and organization $2: at address $3, of mode $4, of execution $5, if
-- given.
select
    c.execution_id, c.command_id, c.tenant_id, c.organization_id, c.step_name, c.status, c.wait,
    c.heard_at
from noetl.command as c
inner join noetl.execution as e on e.execution_id = c.execution_id
where c.tenant_id = $1
    and c.organization_id = $2
    and c.wait is not null
    and ($3::text is null or c.wait ->> 'address' = $3)
    and ($4::text is null or c.wait ->> 'mode' = $4)
    and ($5::bigint is null or c.execution_id = $5)
    and c.status = 'PARKED'
    and e.ended_at is null
order by c.heard_at
limit $6;

-- name: list_stalled :many
-- At most $2 live executions without an event for $1 seconds, by lot: long waits share the turns.
select
    e.execution_id, e.tenant_id, e.organization_id, e.parent_execution_id, e.path, e.catalog_id,
    e.catalog_version, e.status, e.current_step, e.completed_steps, e.workload, e.variables,
    e.error, e.result, e.frames, e.rows, e.warnings, e.last_event_id, e.last_event_type,
    e.version, e.envelope_checksum, e.started_at, e.updated_at, e.ended_at, e.late
from noetl.execution as e
where e.status in ('PENDING', 'RUNNING', 'PAUSED')
    and e.updated_at < now() - make_interval(secs => $1)
order by random()
limit $2;

-- name: list_overdue_waits :many
-- At most $2 commands whose wait has been over for $1 seconds, those that began to wait first.
select c.command_id, c.execution_id, c.tenant_id, c.organization_id
from noetl.command as c
where c.wait is not null and c.status = 'PARKED'
    and c.heard_at + make_interval(secs => (c.wait ->> 'timeout_s')::double precision + $1) < now()
order by c.heard_at
limit $2;

-- name: hold_position :one
-- Lock where execution $1 of shard $2 is projected up to, beginning at 0, and return it.
insert into noetl.projection_position as p (execution_id, shard_id, version)
values ($1, $2, 0)
on conflict (execution_id) do update set shard_id = p.shard_id
returning version;

-- name: set_position :exec
-- Say that execution $1 of shard $2 is projected up to version $3.
update noetl.projection_position
set shard_id = $2, version = $3, updated_at = now()
where execution_id = $1;

-- name: list_ahead :many
-- At most $1 executions that are projected further than their history goes.
select p.execution_id
from noetl.projection_position as p
left join noetl.execution_head as h on h.execution_id = p.execution_id
where p.version > coalesce(h.version, 0)
order by p.execution_id
limit $1;
