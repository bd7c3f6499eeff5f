-- How far playbooks have read their sources. A change by a step is written with the event that says
-- so, by the transaction that appends it; a change by a person says who and why.

create table noetl.state (
    tenant_id text not null,
    organization_id text not null,
    path text not null,
    name text not null,
    type text not null check (type in ('integer', 'timestamp', 'date', 'text')),
    value text not null,
    revision bigint not null check (revision > 0),
    changed_at timestamptz not null default now(),
    primary key (tenant_id, organization_id, path, name)
);

comment on table noetl.state is 'The latest row of noetl.state_change for each name.';

create table noetl.state_change (
    tenant_id text not null,
    organization_id text not null,
    path text not null,
    name text not null,
    revision bigint not null check (revision > 0),
    type text not null,
    value text not null,
    execution_id bigint,
    step text,
    changed_by text,
    reason text,
    changed_at timestamptz not null default now(),
    primary key (tenant_id, organization_id, path, name, revision),
    check (execution_id is not null or (changed_by is not null and reason is not null))
);

comment on table noetl.state_change is
    'Every change of a value of state, by revision; append-only. Changes by executions are also events.';

create type noetl.new_state as (
    tenant_id text,
    organization_id text,
    path text,
    name text,
    revision bigint,
    type text,
    value text,
    execution_id bigint,
    step text,
    changed_by text,
    reason text
);

-- Move values to the revisions that follow the present ones; refuse all where one does not follow.
create function noetl.change_states(changes noetl.new_state[]) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    moved integer;
begin
    if (
        select count(distinct (c.tenant_id, c.organization_id, c.path, c.name))
        from unnest(changes) as c
    ) < cardinality(changes) then
        raise exception 'one transaction moves a state twice' using errcode = 'NT007';
    end if;

    insert into noetl.state as s (
        tenant_id, organization_id, path, name, type, value, revision
    )
    select c.tenant_id, c.organization_id, c.path, c.name, c.type, c.value, c.revision
    from unnest(changes) as c
    where c.revision = 1
        or exists (
            select from noetl.state as k
            where k.tenant_id = c.tenant_id
                and k.organization_id = c.organization_id
                and k.path = c.path
                and k.name = c.name
        )
    order by c.tenant_id, c.organization_id, c.path, c.name
    on conflict (tenant_id, organization_id, path, name) do update
    set type = excluded.type,
        value = excluded.value,
        revision = excluded.revision,
        changed_at = now()
    where s.revision = excluded.revision - 1;
    get diagnostics moved = row_count;
    if moved <> cardinality(changes) then
        raise exception 'a state has moved on since it was read: %',
            (select string_agg(c.path || ' ' || c.name, ', ') from unnest(changes) as c)
            using errcode = 'NT007';
    end if;

    insert into noetl.state_change (
        tenant_id, organization_id, path, name, revision, type, value, execution_id, step,
        changed_by, reason
    )
    select
        c.tenant_id, c.organization_id, c.path, c.name, c.revision, c.type, c.value,
        c.execution_id, c.step, c.changed_by, c.reason
    from unnest(changes) as c;
end
$$;

revoke all on noetl.state, noetl.state_change from public;
revoke all on function noetl.change_states from public;
grant select on noetl.state, noetl.state_change to noetl_planner;
grant execute on function noetl.change_states to noetl_planner;
