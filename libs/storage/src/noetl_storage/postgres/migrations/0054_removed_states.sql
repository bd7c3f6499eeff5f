-- States that a person removes: the next run begins as the first one did.

-- Remove a state and its changes if its revision is still the one that was looked at.
create function noetl.remove_state(
    tenant_id text, organization_id text, path text, name text, revision bigint
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from noetl.state as s
    where s.tenant_id = remove_state.tenant_id
        and s.organization_id = remove_state.organization_id
        and s.path = remove_state.path
        and s.name = remove_state.name
        and s.revision = remove_state.revision;
    if not found then
        raise exception 'a state has moved on since it was read: % %', path, name
            using errcode = 'NT007';
    end if;
    delete from noetl.state_change as c
    where c.tenant_id = remove_state.tenant_id
        and c.organization_id = remove_state.organization_id
        and c.path = remove_state.path
        and c.name = remove_state.name;
end
$$;

comment on table noetl.state_change is
    'Every change of a value of state, by revision, until the state is removed.';

revoke all on function noetl.remove_state from public;
grant execute on function noetl.remove_state to noetl_planner;
