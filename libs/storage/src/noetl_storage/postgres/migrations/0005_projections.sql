-- What projectors derive from the ledger; all of it may be dropped and folded again.
-- JSON columns are json and not jsonb: parity compares them with a replay byte by byte.

create table noetl.execution (
    execution_id bigint primary key,
    tenant_id text not null,
    organization_id text not null,
    parent_execution_id bigint,
    path text not null,
    catalog_id text,
    catalog_version integer,
    status text not null,
    current_step text,
    completed_steps json,
    workload json,
    variables json,
    error json,
    result json,
    frames bigint,
    rows bigint,
    warnings bigint,
    last_event_id bigint,
    last_event_type text,
    version bigint not null,
    envelope_checksum text not null,
    started_at timestamptz,
    updated_at timestamptz,
    ended_at timestamptz,
    projected_at timestamptz not null default now()
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

create index execution_newest on noetl.execution (tenant_id, organization_id, execution_id desc);
create index execution_path on noetl.execution (
    tenant_id, organization_id, path, execution_id desc
);
create index execution_live on noetl.execution (execution_id)
where status in ('PENDING', 'RUNNING');

create table noetl.stage (
    execution_id bigint not null,
    stage_id bigint not null,
    tenant_id text not null,
    organization_id text not null,
    parent_stage_id bigint,
    run_id bigint,
    step_name text not null,
    kind text not null check (kind in ('loop', 'fanout', 'reduce')),
    status text not null,
    slots integer,
    frame_policy json,
    frames bigint,
    frames_failed bigint,
    rows bigint,
    rows_failed bigint,
    opened_event_id bigint,
    closed_event_id bigint,
    started_at timestamptz,
    ended_at timestamptz,
    projected_at timestamptz not null default now(),
    primary key (execution_id, stage_id)
) with (fillfactor = 80);

create index stage_step on noetl.stage (execution_id, step_name);

create table noetl.frame (
    execution_id bigint not null,
    frame_id bigint not null,
    stage_id bigint not null,
    tenant_id text not null,
    organization_id text not null,
    parent_frame_id bigint,
    command_id bigint,
    claimed_event_id bigint,
    terminal_event_id bigint,
    cursor json,
    row_count bigint,
    rows_failed bigint,
    status text not null,
    owner_worker text,
    lease_until timestamptz,
    output_ref json,
    attempts integer,
    created_at timestamptz,
    completed_at timestamptz,
    projected_at timestamptz not null default now(),
    primary key (execution_id, frame_id)
) with (fillfactor = 80);

create index frame_open on noetl.frame (stage_id, status, lease_until)
where status in ('PENDING', 'CLAIMED', 'RUNNING');
create index frame_stage on noetl.frame (stage_id, frame_id);
create index frame_command on noetl.frame (command_id) where command_id is not null;

create table noetl.command (
    execution_id bigint not null,
    command_id bigint not null,
    tenant_id text not null,
    organization_id text not null,
    run_id bigint,
    step_name text not null,
    unit text not null,
    pool text not null,
    lane text not null,
    stage_id bigint,
    status text not null,
    attempts integer not null,
    worker_id text,
    worker_locator text,
    locality json,
    rejected bigint,
    issued_event_id bigint,
    started_event_id bigint,
    terminal_event_id bigint,
    issued_at timestamptz,
    heard_at timestamptz,
    completed_at timestamptz,
    projected_at timestamptz not null default now(),
    primary key (execution_id, command_id)
) with (fillfactor = 80);

create index command_live on noetl.command (heard_at) where status in ('ISSUED', 'RUNNING');

create table noetl.loop (
    execution_id bigint not null,
    run_id bigint not null,
    tenant_id text not null,
    organization_id text not null,
    step_name text not null,
    mode text not null,
    status text not null,
    stage_id bigint,
    total bigint,
    done bigint,
    failed bigint,
    in_flight bigint,
    is_finished boolean,
    last_event_id bigint,
    started_at timestamptz,
    projected_at timestamptz not null default now(),
    primary key (execution_id, run_id)
) with (fillfactor = 70);

create table noetl.business_object (
    execution_id bigint not null,
    object_id text not null,
    tenant_id text not null,
    organization_id text not null,
    object_type text not null,
    status text,
    version bigint,
    attributes json,
    payload_refs json,
    first_event_id bigint,
    last_event_id bigint,
    is_deleted boolean,
    created_at timestamptz,
    updated_at timestamptz,
    projected_at timestamptz not null default now(),
    primary key (execution_id, object_id)
);

create index business_object_identity on noetl.business_object (
    tenant_id, organization_id, object_type, object_id
);

create table noetl.projection_position (
    execution_id bigint primary key,
    shard_id integer not null,
    version bigint not null,
    updated_at timestamptz not null default now()
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

comment on table noetl.projection_position is 'The version up to which an execution is projected.';

create table noetl.projection_checkpoint (
    shard_id integer primary key,
    last_projected_event_id bigint not null default 0,
    last_projected_at timestamptz not null default now(),
    lag_ms bigint
) with (fillfactor = 50);

create table noetl.projection_snapshot (
    execution_id bigint primary key,
    version bigint not null,
    fold_version integer not null,
    upcaster_digest text not null,
    checksum text not null,
    state bytea not null,
    created_at timestamptz not null default now()
);

-- Place an execution on a shard: the same rule as `ids.shard_of`.
create function noetl.shard_of(execution_id bigint, shard_count integer) returns integer
language sql immutable strict parallel safe
as $$
select mod(
    mod(('x' || encode(substr(d.seed, 1, 4), 'hex'))::bit(32)::bigint * 4294967296::numeric
        + ('x' || encode(substr(d.seed, 5, 4), 'hex'))::bit(32)::bigint, shard_count),
    shard_count
)::integer
from (select sha256(convert_to('shard/' || execution_id, 'UTF8')) as seed) as d
$$;
