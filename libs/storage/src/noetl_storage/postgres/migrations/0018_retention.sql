-- How long histories stay in the ledger, who holds them, and the one way by which they leave it.

do $$
begin
    if not exists (select from pg_roles where rolname = 'noetl_archivist') then
        create role noetl_archivist nologin;
    end if;
exception
    when insufficient_privilege then
        raise exception 'the database has no role noetl_archivist: have an administrator run '
            'create role noetl_archivist, and this step again';
    -- Roles belong to the whole server: another database's migration was faster.
    when duplicate_object or unique_violation then null;
end
$$;

create table noetl.retention_policy (
    tenant_id text not null,
    organization_id text not null,
    keep_days integer not null check (keep_days between 0 and 36500),
    action text not null check (action in ('archive', 'drop', 'keep')),
    set_by text not null,
    set_at timestamptz not null default now(),
    primary key (tenant_id, organization_id)
);

comment on table noetl.retention_policy is
'How long after its end a history stays in the ledger, and what becomes of it then, by owner.';

create table noetl.legal_hold (
    hold_id bigint generated always as identity primary key,
    tenant_id text not null,
    organization_id text not null,
    execution_id bigint,
    reason text not null check (length(reason) between 1 and 2000),
    held_by text not null,
    held_at timestamptz not null default now(),
    released_by text,
    release_reason text,
    released_at timestamptz
);

comment on table noetl.legal_hold is
'What may not leave the ledger: one execution, or without one all of an owner; rows stay for good.';

create index legal_hold_open on noetl.legal_hold (tenant_id, organization_id, execution_id)
where released_at is null;

create table noetl.archive_unit (
    manifest_id bigint generated always as identity primary key,
    tenant_id text not null,
    organization_id text not null,
    month text not null,
    action text not null check (action in ('archive', 'drop')),
    status text not null default 'planned' check (
        status in ('planned', 'archived', 'verified', 'detached', 'dropped')
    ),
    partition_name text not null,
    histories integer not null,
    events bigint not null,
    manifest_sha256 text,
    fold_version integer not null,
    upcaster_digest text not null,
    planned_by text not null,
    planned_at timestamptz not null default now(),
    archived_at timestamptz,
    verified_at timestamptz,
    detached_at timestamptz,
    dropped_at timestamptz
);

create index archive_unit_open on noetl.archive_unit (partition_name, manifest_id)
where status <> 'dropped';

create table noetl.archived_history (
    execution_id bigint not null,
    first_version bigint not null,
    last_version bigint not null,
    manifest_id bigint not null references noetl.archive_unit (manifest_id),
    previous text not null,
    checksum text not null,
    left_at timestamptz,
    primary key (execution_id, first_version)
);

comment on table noetl.archived_history is
'Which versions of a history a manifest holds; left_at is when they were taken out of the ledger.';

create index archived_history_unit on noetl.archived_history (manifest_id, execution_id);

create table noetl.retention_log (
    log_id bigint generated always as identity primary key,
    logged_at timestamptz not null default now(),
    database_role text not null default session_user,
    step text not null,
    manifest_id bigint,
    partition_name text,
    histories integer not null default 0,
    events bigint not null default 0
);

comment on table noetl.retention_log is 'Every time that something left the ledger; append-only.';

-- Whether something keeps an execution from leaving the ledger.
create function noetl.is_held(tenant text, organization text, execution bigint) returns boolean
language sql stable
return exists (
    select from noetl.legal_hold as l
    where l.tenant_id = tenant
        and l.organization_id = organization
        and (l.execution_id is null or l.execution_id = execution)
        and l.released_at is null
);

-- The month, as 2026-01, in which an execution began.
create function noetl.month_of(execution bigint) returns text
language sql immutable strict parallel safe
set timezone = 'UTC'
return to_char(to_timestamp(((execution >> 22) + 1704067200000) / 1000.0), 'YYYY-MM');

-- The partition of the ledger that has the executions of a month.
create function noetl.partition_of(month text) returns text
language sql stable
as $$
select coalesce(
    (
        select c.relname::text
        from pg_catalog.pg_inherits as i
        inner join pg_catalog.pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'noetl.event'::regclass
            and c.relname = 'event_' || replace(month, '-', '_')
    ),
    'event_default'
);
$$;

-- Hold an execution, or with none everything of an owner; nothing of it leaves from now on.
create function noetl.place_hold(
    tenant text, organization text, execution bigint, why text, who text
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    held bigint;
begin
    -- Whatever leaves the ledger right now has left before the hold, or sees it.
    perform pg_advisory_xact_lock(hashtext('noetl.compact'));
    select l.hold_id into held
    from noetl.legal_hold as l
    where l.tenant_id = tenant and l.organization_id = organization
        and l.execution_id is not distinct from execution and l.released_at is null;
    if held is null then
        insert into noetl.legal_hold (tenant_id, organization_id, execution_id, reason, held_by)
        values (tenant, organization, execution, why, who)
        returning hold_id into held;
    end if;
    return held;
end
$$;

-- End the open hold of an execution, or of an owner; null when there is none.
create function noetl.release_hold(
    tenant text, organization text, execution bigint, why text, who text
) returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
update noetl.legal_hold as l
set released_at = now(), released_by = who, release_reason = why
where l.tenant_id = tenant and l.organization_id = organization
    and l.execution_id is not distinct from execution and l.released_at is null
returning l.hold_id;
$$;

-- Say how long an owner's histories stay.
create function noetl.set_retention(
    tenant text, organization text, days integer, what text, who text
) returns void
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
insert into noetl.retention_policy (tenant_id, organization_id, keep_days, action, set_by)
values (tenant, organization, days, what, who)
on conflict (tenant_id, organization_id) do update
set keep_days = days, action = what, set_by = who, set_at = now();
$$;

-- Histories of an owner that may leave: ended long enough ago, projected, nothing of them on its
-- way, no parent that could still ask, not held, and not archived up to their end.
create function noetl.list_due(
    tenant text, organization text, keep_s double precision, histories_max integer
) returns table (
    execution_id bigint, first_version bigint, last_version bigint, previous text, checksum text
)
language sql stable
as $$
select
    h.execution_id, coalesce(a.last_version, 0) + 1, h.version, coalesce(a.checksum, ''), h.checksum
from noetl.execution_head as h
inner join noetl.execution as e on e.execution_id = h.execution_id
inner join noetl.projection_position as p
    on p.execution_id = h.execution_id and p.version = h.version
left join lateral (
    select k.last_version, k.checksum
    from noetl.archived_history as k
    where k.execution_id = h.execution_id
    order by k.first_version desc
    limit 1
) as a on true
where h.tenant_id = tenant
    and h.organization_id = organization
    and e.status not in ('PENDING', 'RUNNING', 'PAUSED')
    and e.ended_at <= now() - make_interval(secs => keep_s)
    and h.updated_at <= now() - make_interval(secs => keep_s)
    and coalesce(a.last_version, 0) < h.version
    and not noetl.is_held(tenant, organization, h.execution_id)
    and not exists (select from noetl.outbox as o where o.execution_id = h.execution_id)
    and not exists (
        select from noetl.request as r
        where r.execution_id = h.execution_id and r.settled_at is null
    )
    and not exists (
        select from noetl.execution as up
        where up.execution_id = e.parent_execution_id and up.ended_at is null
    )
order by h.execution_id
limit histories_max;
$$;

-- Plan a unit of histories that are due, all of one month; null when none is.
create function noetl.plan_archive(
    tenant text,
    organization text,
    what text,
    keep_s double precision,
    histories_max integer,
    events_max bigint,
    fold integer,
    upcasters text,
    who text
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    planned bigint;
begin
    perform pg_advisory_xact_lock(hashtext('noetl.plan_archive'));
    with due as materialized (
        select
            f.*,
            noetl.month_of(f.execution_id) as month,
            noetl.month_of(min(f.execution_id) over ()) as first_month,
            sum(f.last_version - f.first_version + 1) over (order by f.execution_id) as until,
            row_number() over (order by f.execution_id) as number
        from noetl.list_due(tenant, organization, keep_s, histories_max) as f
    ),
    chosen as (
        select d.*
        from due as d
        where d.month = d.first_month and (d.until <= events_max or d.number = 1)
    ),
    unit as (
        insert into noetl.archive_unit (
            tenant_id, organization_id, month, action, partition_name, histories, events,
            fold_version, upcaster_digest, planned_by
        )
        select
            tenant, organization, c.month, what, noetl.partition_of(c.month), count(*),
            sum(c.last_version - c.first_version + 1), fold, upcasters, who
        from chosen as c
        group by c.month
        returning manifest_id
    ),
    kept as (
        insert into noetl.archived_history (
            execution_id, first_version, last_version, manifest_id, previous, checksum
        )
        select
            c.execution_id, c.first_version, c.last_version, u.manifest_id, c.previous, c.checksum
        from chosen as c
        cross join unit as u
    )
    select u.manifest_id into planned from unit as u;
    return planned;
end
$$;

-- Take note that a unit was archived, with its manifest's digest, or then read back.
create function noetl.advance_archive(manifest bigint, reached text, digest text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update noetl.archive_unit as u
    set status = reached,
        manifest_sha256 = coalesce(digest, u.manifest_sha256),
        archived_at = coalesce(u.archived_at, now()),
        verified_at = case when reached = 'verified' then now() end
    where u.manifest_id = manifest
        and (
            (reached = 'archived' and u.status = 'planned' and digest is not null)
            or (reached = 'verified' and u.status = 'archived')
        );
    return found;
end
$$;

-- Take a history that cannot be archived out of a planned unit, and hold it: somebody has to look.
create function noetl.leave_out(manifest bigint, execution bigint, why text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    unit record;
    gone bigint;
begin
    select u.tenant_id, u.organization_id into unit
    from noetl.archive_unit as u
    where u.manifest_id = manifest and u.status = 'planned'
    for update;
    delete from noetl.archived_history as a
    where a.manifest_id = manifest and a.execution_id = execution
        and unit.tenant_id is not null
    returning a.last_version - a.first_version + 1 into gone;
    if gone is null then
        return;
    end if;
    update noetl.archive_unit as u
    set histories = u.histories - 1, events = u.events - gone
    where u.manifest_id = manifest;
    perform noetl.place_hold(
        unit.tenant_id, unit.organization_id, execution, left(why, 2000), 'archivist'
    );
end
$$;
