-- A request that a planner has settled needs no sending any more: whoever took it was told of it
-- by a publication of its own. Without this each one would go out a second time.
create function noetl.drop_settled_message() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from noetl.outbox as o
    where o.execution_id = new.execution_id
        and o.message_id in (new.request_id, new.request_id || ':' || new.sends);
    return null;
end
$$;

create trigger request_settled after update of settled_at on noetl.request
for each row when (old.settled_at is null and new.settled_at is not null)
execute function noetl.drop_settled_message();

revoke execute on function noetl.drop_settled_message() from public;
