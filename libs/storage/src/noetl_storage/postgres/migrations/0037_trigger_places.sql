-- How many executions that a trigger has started may run at once.

alter table noetl.trigger
add column max_in_flight integer check (max_in_flight between 1 and 10000);

comment on column noetl.trigger.max_in_flight is 'Null: any number of executions at once.';

-- The executions that count. A place is claimed before its execution is asked for, by the identity of
-- the message, and found again when the message comes again. Who ended is removed when all are taken.
create table noetl.trigger_place (
    tenant_id text not null,
    organization_id text not null,
    trigger_name text not null,
    message_key text not null,
    execution_id bigint not null,
    claimed_at timestamptz not null default now(),
    primary key (tenant_id, organization_id, trigger_name, message_key)
);

comment on table noetl.trigger_place is 'Executions that count against max_in_flight of a trigger.';

-- Claim a place for the execution of a message: its execution, or null while all are taken. The place of
-- an execution that nobody asked for within `unasked_s` seconds is free: its message came to nothing.
create function noetl.claim_trigger_place(
    of_tenant text,
    of_organization text,
    of_trigger text,
    of_message text,
    new_execution bigint,
    unasked_s double precision
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    places_max integer;
    held bigint;
    places integer;
begin
    select t.max_in_flight into places_max
    from noetl.trigger as t
    where t.tenant_id = of_tenant
        and t.organization_id = of_organization
        and t.name = of_trigger
    for update;
    if places_max is null then
        return new_execution;
    end if;
    select p.execution_id into held
    from noetl.trigger_place as p
    where p.tenant_id = of_tenant
        and p.organization_id = of_organization
        and p.trigger_name = of_trigger
        and p.message_key = of_message;
    if held is not null then
        return held;
    end if;
    select count(*) into places
    from noetl.trigger_place as p
    where p.tenant_id = of_tenant
        and p.organization_id = of_organization
        and p.trigger_name = of_trigger;
    if places >= places_max then
        with freed as (
            delete from noetl.trigger_place as p
            where p.tenant_id = of_tenant
                and p.organization_id = of_organization
                and p.trigger_name = of_trigger
                and (
                    exists (
                        select from noetl.execution as e
                        where e.execution_id = p.execution_id and e.ended_at is not null
                    )
                    or (
                        p.claimed_at < now() - make_interval(secs => unasked_s)
                        and not exists (
                            select from noetl.request as r
                            where r.request_id = 'execute-' || p.execution_id
                        )
                    )
                )
            returning 1
        )
        select places - count(*) into places
        from freed;
    end if;
    if places >= places_max then
        return null;
    end if;
    insert into noetl.trigger_place (
        tenant_id, organization_id, trigger_name, message_key, execution_id
    )
    values (of_tenant, of_organization, of_trigger, of_message, new_execution);
    return new_execution;
end
$$;

revoke all on noetl.trigger_place from public;
revoke all on function noetl.claim_trigger_place(
    text, text, text, text, bigint, double precision
) from public;
grant execute on function noetl.claim_trigger_place(
    text, text, text, text, bigint, double precision
) to noetl_planner;
grant select, delete on noetl.trigger_place to noetl_planner;
