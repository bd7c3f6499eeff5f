-- The ledger: one append-only table of events, and where each history ends.

create function noetl.snowflake_floor(moment timestamptz) returns bigint
language sql immutable strict parallel safe
set timezone = 'UTC'
return ((extract(epoch from moment) * 1000)::bigint - 1704067200000) << 22;

create table noetl.event (
    event_id bigint not null,
    execution_id bigint not null,
    stream_version bigint not null check (stream_version > 0),
    tenant_id text not null,
    organization_id text not null,
    stream_id text not null,
    aggregate_type text not null,
    aggregate_id text not null,
    event_type text not null,
    schema_name text not null,
    schema_version integer not null,
    event_time timestamptz not null,
    created_at timestamptz not null default now(),
    producer text not null,
    causation_id text,
    correlation_id text,
    idempotency_key text,
    node_name text,
    node_id text,
    status text,
    stage_id bigint,
    frame_id bigint,
    command_id bigint,
    context jsonb not null,
    result jsonb,
    error jsonb,
    payload_ref jsonb,
    meta jsonb,
    envelope_checksum text not null,
    exact text,
    primary key (execution_id, stream_version),
    constraint event_result_shape check (
        result is null
        or (
            jsonb_typeof(result) = 'object'
            and result - array['status', 'reference', 'parent_ref', 'context'] = '{}'::jsonb
            and octet_length(result::text) <= 24576
        )
    )
) partition by range (execution_id);

comment on table noetl.event is
    'Append-only; created_at is the ingest time. Partitioned by start time of the execution.';
comment on column noetl.event.context is 'The event''s own fields, without result and error.';
comment on column noetl.event.exact is
    'The envelope as JSON, only where jsonb would not give back the bytes that were sealed.';

create unique index event_event_id_key on noetl.event (execution_id, event_id);
create unique index event_idempotency_key on noetl.event (execution_id, idempotency_key)
where idempotency_key is not null;
create index event_item_results on noetl.event (execution_id, node_id)
where event_type in ('call.done', 'call.error');
create index event_stage on noetl.event (execution_id, stage_id, event_id desc)
where stage_id is not null;
create index event_frame on noetl.event (execution_id, frame_id, event_id desc)
where frame_id is not null;

create table noetl.event_default partition of noetl.event default;

-- Create the partitions of this month and of `months` more; return how many were missing.
create function noetl.ensure_partitions(months integer) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $$
declare
    first timestamptz := date_trunc('month', now());
    low timestamptz;
    high timestamptz;
    partition_name text;
    made integer := 0;
begin
    perform pg_advisory_xact_lock(hashtext('noetl.ensure_partitions'));
    for ahead in 0..least(greatest(months, 0), 120) loop
        low := first + make_interval(months => ahead);
        high := first + make_interval(months => ahead + 1);
        partition_name := 'event_' || to_char(low, 'YYYY_MM');
        if to_regclass('noetl.' || partition_name) is null then
            execute format(
                'create table noetl.%I partition of noetl.event for values from (%s) to (%s)',
                partition_name, noetl.snowflake_floor(low), noetl.snowflake_floor(high)
            );
            made := made + 1;
        end if;
    end loop;
    return made;
end
$$;

select noetl.ensure_partitions(2);

create table noetl.execution_head (
    execution_id bigint primary key,
    tenant_id text not null,
    organization_id text not null,
    version bigint not null,
    checksum text not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

comment on table noetl.execution_head is 'Where each history ends; the row lock orders appends.';
