-- Requests that nobody asks for again: those of the reaper, which keeps waking executions that wait.
-- What others asked for stays, for its idempotency key answers whoever asks again.

create index request_forgotten on noetl.request (settled_at)
where kind = 'reaper' and idempotency_key is null and settled_at is not null;

create function noetl.forget_requests(settled_for_s double precision, requests_max integer)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    forgotten integer;
begin
    delete from noetl.request as r
    where r.request_id = any(array(
        select d.request_id
        from noetl.request as d
        where d.kind = 'reaper'
            and d.idempotency_key is null
            and d.settled_at < now() - make_interval(secs => settled_for_s)
        order by d.settled_at
        limit requests_max
    ));
    get diagnostics forgotten = row_count;
    return forgotten;
end
$$;

revoke execute on function noetl.forget_requests(double precision, integer) from public;
grant execute on function noetl.forget_requests(double precision, integer) to noetl_reaper;
