-- Executions that began lately are found without reading past all the others.

-- Executions are stored in about the order in which they begin: a summary for each range of pages
-- costs no write for an execution.
create index execution_started on noetl.execution using brin (started_at)
with (pages_per_range = 32, autosummarize = on);

-- As before, and none that began before a time, where one is given. What has not begun is listed.
drop function noetl.list_executions(text, text, text, text, bigint, integer);

create function noetl.list_executions(
    tenant text,
    organization text,
    wanted_status text,
    wanted_path text,
    before_id bigint,
    executions_max integer,
    begun_since timestamptz default null
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
        and (begun_since is null or e.started_at is null or e.started_at >= begun_since)
    order by e.execution_id desc
    limit executions_max;
end
$$;

revoke all on function noetl.list_executions(
    text, text, text, text, bigint, integer, timestamptz
) from public;
grant execute on function noetl.list_executions(
    text, text, text, text, bigint, integer, timestamptz
) to noetl_planner;
