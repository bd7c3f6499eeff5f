-- Times that a schedule passed over by its own rules, beside what it fired.

alter table noetl.schedule add column skipped_count bigint not null default 0;

comment on column noetl.schedule.skipped_count is
'How many times it passed over so far, also those of which noetl.schedule_skip has no row any more.';

create table noetl.schedule_skip (
    schedule_id bigint not null references noetl.schedule on delete cascade,
    first_at timestamptz not null,
    last_at timestamptz not null,
    times integer not null check (times > 0),
    is_exact boolean not null,
    reason text not null check (reason in ('catch_up', 'overlap')),
    running_execution_id bigint,
    skipped_at timestamptz not null,
    primary key (schedule_id, first_at),
    check (first_at <= last_at)
);

comment on table noetl.schedule_skip is
'Runs of times that a schedule passed over for one reason: its newest 100, until it is removed.';
comment on column noetl.schedule_skip.is_exact is 'Whether `times` is all of them, or the least.';
comment on column noetl.schedule_skip.running_execution_id is
'The execution that ran, where it is passed over for an overlap.';

-- Move a schedule on past the times from first_at to last_at, and record why: both or none. Times
-- that one execution kept from firing share a row. False unless the schedule is as it was read.
create function noetl.skip_schedule_times(
    skipped_id bigint,
    read_revision bigint,
    read_next_at timestamptz,
    new_next_at timestamptz,
    first_at timestamptz,
    last_at timestamptz,
    times integer,
    is_exact boolean,
    reason text,
    running_execution_id bigint,
    skipped_at timestamptz
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
    update noetl.schedule as s
    set next_at = new_next_at, skipped_count = s.skipped_count + times
    where s.schedule_id = skipped_id
        and s.is_enabled
        and s.revision = read_revision
        and s.next_at = read_next_at;
    if not found then
        return false;
    end if;
    update noetl.schedule_skip as k
    set last_at = last_at, times = k.times + times, skipped_at = skipped_at
    where k.schedule_id = skipped_id
        and k.first_at = (
            select max(n.first_at) from noetl.schedule_skip as n where n.schedule_id = skipped_id
        )
        and k.last_at < first_at
        and k.reason = 'overlap'
        and reason = 'overlap'
        and k.running_execution_id = running_execution_id;
    if found then
        return true;
    end if;
    -- A clock that was set back lets a time come twice.
    insert into noetl.schedule_skip as k (
        schedule_id, first_at, last_at, times, is_exact, reason, running_execution_id, skipped_at
    )
    values (
        skipped_id, first_at, last_at, times, is_exact, reason, running_execution_id, skipped_at
    )
    on conflict on constraint schedule_skip_pkey do update
    set last_at = excluded.last_at,
        times = excluded.times,
        is_exact = excluded.is_exact,
        reason = excluded.reason,
        running_execution_id = excluded.running_execution_id,
        skipped_at = excluded.skipped_at;
    delete from noetl.schedule_skip as k
    where k.schedule_id = skipped_id
        and k.first_at < (
            select min(n.first_at)
            from (
                select m.first_at
                from noetl.schedule_skip as m
                where m.schedule_id = skipped_id
                order by m.first_at desc
                limit 100
            ) as n
        );
    return true;
end
$$;

revoke all on noetl.schedule_skip from public;
revoke all on function noetl.skip_schedule_times from public;
grant select on noetl.schedule_skip to noetl_planner;
grant execute on function noetl.skip_schedule_times to noetl_reaper;
