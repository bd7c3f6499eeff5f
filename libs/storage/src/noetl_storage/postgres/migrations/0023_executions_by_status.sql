-- Executions of one status or one path, newest first, without reading past all the others.

create index execution_status on noetl.execution (
    tenant_id, organization_id, status, execution_id desc
);

-- At most so many executions of a tenant, newest first: of a status, of a path, before another one,
-- where these are given. Planned anew for what is asked: a plan that serves every filter reads past
-- what is filtered out, and a list of nothing would take as long as the table is.
create function noetl.list_executions(
    tenant text,
    organization text,
    wanted_status text,
    wanted_path text,
    before_id bigint,
    executions_max integer
) returns setof noetl.execution
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
begin
    return query
    select e.*
    from noetl.execution as e
    where e.tenant_id = tenant
        and e.organization_id = organization
        and (wanted_status is null or e.status = wanted_status)
        and (wanted_path is null or e.path = wanted_path)
        and (before_id is null or e.execution_id < before_id)
    order by e.execution_id desc
    limit executions_max;
end
$$;

revoke all on function noetl.list_executions(text, text, text, text, bigint, integer) from public;
grant execute on function noetl.list_executions(text, text, text, text, bigint, integer)
to noetl_planner;
