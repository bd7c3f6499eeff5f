-- The only way by which events leave the ledger: what a verified manifest holds, and nobody holds.

-- Whether every history of a partition is archived up to its end, verified, and not held.
create function noetl.is_covered(low bigint, high bigint) returns boolean
language sql stable
return not exists (
    select from noetl.execution_head as h
    where h.execution_id >= low
        and h.execution_id < high
        and (
            noetl.is_held(h.tenant_id, h.organization_id, h.execution_id)
            or not exists (
                select from noetl.archived_history as a
                inner join noetl.archive_unit as u on u.manifest_id = a.manifest_id
                where a.execution_id = h.execution_id
                    and a.last_version >= h.version
                    and u.status in ('verified', 'detached', 'dropped')
            )
        )
);

-- Take a partition out of the ledger when all of it is archived; tell whether it was.
create function noetl.detach_covered(place text) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '3s'
as $$
declare
    began timestamptz := to_timestamp(substr(place, 7), 'YYYY_MM');
    low bigint := noetl.snowflake_floor(began);
    high bigint := noetl.snowflake_floor(began + interval '1 month');
    there bigint;
    expected bigint;
begin
    if began + interval '1 month' > now() or not noetl.is_covered(low, high) then
        return false;
    end if;
    execute format('select count(*) from noetl.%I', place) into there;
    select coalesce(sum(a.last_version - a.first_version + 1), 0) into expected
    from noetl.archived_history as a
    inner join noetl.archive_unit as u on u.manifest_id = a.manifest_id
    where u.partition_name = place and u.status = 'verified' and a.left_at is null;
    if there <> expected then
        raise exception 'partition % has % events, and % of them are archived: it stays',
            place, there, expected using errcode = 'NT004';
    end if;
    execute format('alter table noetl.event detach partition noetl.%I', place);
    -- Appends waited for the lock: whoever came before it is seen now.
    if not noetl.is_covered(low, high) then
        raise exception 'partition % was written to meanwhile: it stays', place
            using errcode = 'NT004';
    end if;
    update noetl.archived_history as a
    set left_at = now()
    from noetl.archive_unit as u
    where u.manifest_id = a.manifest_id
        and u.partition_name = place and u.status = 'verified' and a.left_at is null;
    update noetl.archive_unit as u
    set status = 'detached', detached_at = now()
    where u.partition_name = place and u.status = 'verified';
    insert into noetl.retention_log (step, partition_name, histories, events)
    select 'detach', place, count(*), there
    from noetl.execution_head as h
    where h.execution_id >= low and h.execution_id < high;
    return true;
end
$$;

-- Delete the events of so many histories of a unit; return how many histories and events it were.
create function noetl.delete_archived(
    manifest bigint, histories_max integer, out histories integer, out events bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    expected bigint;
begin
    with chosen as (
        select a.execution_id, a.first_version, a.last_version, a.checksum
        from noetl.archived_history as a
        inner join noetl.archive_unit as u on u.manifest_id = a.manifest_id
        where a.manifest_id = manifest
            and a.left_at is null
            and u.status = 'verified'
            and not noetl.is_held(u.tenant_id, u.organization_id, a.execution_id)
        order by a.execution_id
        limit histories_max
    ),
    gone as (
        delete from noetl.event as e
        using chosen as c
        where e.execution_id = c.execution_id
            and e.stream_version between c.first_version and c.last_version
        returning e.stream_version = c.last_version and e.envelope_checksum <> c.checksum as is_other
    ),
    marked as (
        update noetl.archived_history as a
        set left_at = now()
        from chosen as c
        where a.execution_id = c.execution_id and a.first_version = c.first_version
        returning a.last_version - a.first_version + 1 as events
    )
    select
        (select count(*) from marked), (select count(*) from gone where not is_other),
        (select coalesce(sum(m.events), 0) from marked as m)
    into histories, events, expected;
    if events <> expected then
        raise exception 'manifest % holds % events that the ledger should have, which has %',
            manifest, expected, events using errcode = 'NT004';
    end if;
    if histories > 0 then
        insert into noetl.retention_log (step, manifest_id, partition_name, histories, events)
        select 'delete', manifest, u.partition_name, delete_archived.histories,
            delete_archived.events
        from noetl.archive_unit as u
        where u.manifest_id = manifest;
    end if;
end
$$;

-- Take the next step with a verified unit, and return where it stands and what left the ledger.
-- Its partition is detached and, in a transaction of its own, dropped where all of it is archived;
-- else its histories are deleted, so many at a time, unless they are to wait for their partition.
create function noetl.compact(
    manifest bigint,
    can_delete boolean,
    histories_max integer,
    out reached text,
    out histories integer,
    out events bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    unit record;
begin
    perform pg_advisory_xact_lock(hashtext('noetl.compact'));
    select u.status, u.partition_name, u.histories, u.events into strict unit
    from noetl.archive_unit as u
    where u.manifest_id = manifest
    for update;
    reached := unit.status;
    histories := 0;
    events := 0;
    if unit.status = 'detached' then
        execute format('drop table if exists noetl.%I', unit.partition_name);
        update noetl.archive_unit as u
        set status = 'dropped', dropped_at = now()
        where u.partition_name = unit.partition_name and u.status = 'detached';
        insert into noetl.retention_log (step, manifest_id, partition_name, histories, events)
        values ('drop', manifest, unit.partition_name, unit.histories, unit.events);
        reached := 'dropped';
        return;
    elsif unit.status <> 'verified' then
        return;
    end if;
    if unit.partition_name <> 'event_default' then
        if noetl.detach_covered(unit.partition_name) then
            reached := 'detached';
            histories := unit.histories;
            events := unit.events;
            return;
        end if;
    end if;
    if not can_delete and unit.partition_name <> 'event_default' then
        return;
    end if;
    select d.histories, d.events into histories, events
    from noetl.delete_archived(manifest, histories_max) as d;
    if not exists (
        select from noetl.archived_history as a
        where a.manifest_id = manifest and a.left_at is null
    ) then
        update noetl.archive_unit as u
        set status = 'dropped', dropped_at = now()
        where u.manifest_id = manifest;
        reached := 'dropped';
    end if;
end
$$;

revoke all on
noetl.retention_policy, noetl.legal_hold, noetl.archive_unit, noetl.archived_history,
noetl.retention_log
from public;
revoke all on function
noetl.is_held(text, text, bigint),
noetl.month_of(bigint),
noetl.partition_of(text),
noetl.place_hold(text, text, bigint, text, text),
noetl.release_hold(text, text, bigint, text, text),
noetl.set_retention(text, text, integer, text, text),
noetl.list_due(text, text, double precision, integer),
noetl.plan_archive(
    text, text, text, double precision, integer, bigint, integer, text, text
),
noetl.advance_archive(bigint, text, text),
noetl.leave_out(bigint, bigint, text),
noetl.is_covered(bigint, bigint),
noetl.detach_covered(text),
noetl.delete_archived(bigint, integer),
noetl.compact(bigint, boolean, integer)
from public;

-- The archivist reads what may leave, and takes it out by these functions alone.
grant usage on schema noetl to noetl_archivist;
grant select on noetl.schema_migration, noetl.event, noetl.execution_head, noetl.execution,
noetl.projection_position, noetl.outbox, noetl.request, noetl.retention_policy, noetl.legal_hold,
noetl.archive_unit, noetl.archived_history, noetl.retention_log
to noetl_archivist;
grant execute on function
noetl.is_held(text, text, bigint),
noetl.month_of(bigint),
noetl.list_due(text, text, double precision, integer),
noetl.plan_archive(
    text, text, text, double precision, integer, bigint, integer, text, text
),
noetl.advance_archive(bigint, text, text),
noetl.leave_out(bigint, bigint, text),
noetl.compact(bigint, boolean, integer),
noetl.lead_role(text, text, double precision)
to noetl_archivist;
create policy archivist on noetl.event for select to noetl_archivist using (true);
create policy archivist on noetl.execution for select to noetl_archivist using (true);

-- The API places holds and says what became of a history; projectors leave archived ones alone.
grant select on noetl.retention_policy, noetl.legal_hold, noetl.archive_unit,
noetl.archived_history, noetl.retention_log
to noetl_planner;
grant execute on function
noetl.place_hold(text, text, bigint, text, text),
noetl.release_hold(text, text, bigint, text, text),
noetl.set_retention(text, text, integer, text, text)
to noetl_planner;
grant select on noetl.archived_history, noetl.archive_unit to noetl_projector, noetl_reaper;
