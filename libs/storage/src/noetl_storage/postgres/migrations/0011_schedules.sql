-- What starts playbooks by the clock.

alter table noetl.schedule
add column version integer check (version > 0),
add column catch_up text not null default 'last' check (catch_up in ('skip', 'last', 'all')),
add column catch_up_max integer not null default 10 check (catch_up_max > 0),
add column overlap text not null default 'allow' check (overlap in ('allow', 'skip')),
add column revision bigint not null default 1,
add column last_execution_id bigint,
add column updated_at timestamptz not null default now();

comment on column noetl.schedule.next_at is
'The earliest nominal time that was neither fired nor passed over.';

create index schedule_due on noetl.schedule (next_at) where is_enabled and next_at is not null;

-- Move a schedule on and ask for the execution of a nominal time, if there is one: both or none.
-- Returns nothing unless the schedule is still as it was read.
create function noetl.fire_schedule(
    fired_id bigint,
    read_revision bigint,
    read_next_at timestamptz,
    new_next_at timestamptz,
    nominal_at timestamptz,
    request_id text,
    execution_id bigint,
    tenant_id text,
    organization_id text,
    kind text,
    subject text,
    data bytea,
    idempotency_key text
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    begun bigint;
begin
    perform 1
    from noetl.schedule as s
    where s.schedule_id = fired_id
        and s.is_enabled
        and s.revision = read_revision
        and s.next_at = read_next_at
    for update;
    if not found then
        return null;
    end if;
    if nominal_at is null then
        update noetl.schedule as s set next_at = new_next_at where s.schedule_id = fired_id;
        return 0;
    end if;
    begun := noetl.submit_request(
        request_id, execution_id, tenant_id, organization_id, kind, subject, data, idempotency_key
    );
    update noetl.schedule as s
    set next_at = new_next_at, last_at = nominal_at, last_execution_id = begun
    where s.schedule_id = fired_id;
    return begun;
end
$$;

revoke all on function noetl.fire_schedule(
    bigint, bigint, timestamptz, timestamptz, timestamptz, text, bigint, text, text, text, text,
    bytea, text
) from public;
grant execute on function noetl.fire_schedule(
    bigint, bigint, timestamptz, timestamptz, timestamptz, text, bigint, text, text, text, text,
    bytea, text
) to noetl_reaper;
grant select on noetl.schedule to noetl_reaper;
grant insert, update, delete on noetl.schedule to noetl_planner;
