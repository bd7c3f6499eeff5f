-- Who put what starts executions later, and who sent a message: executions name them as their cause.

alter table noetl.schedule add column actor json;
alter table noetl.webhook add column actor json;
alter table noetl.trigger add column actor json;
alter table noetl.inbox add column actor json;

drop function noetl.keep_letter(text, text, text, text, bytea, text, boolean);

-- Keep a message, or say what is there already: kept, repeated or refused.
-- `open_wait` is the wait that is open at the address, if one is; a single address takes one ever.
create function noetl.keep_letter(
    new_tenant text,
    new_organization text,
    new_address text,
    new_digest text,
    new_data bytea,
    open_wait text,
    is_single boolean,
    new_actor json default null
) returns table (reception text, kept_id bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    latest noetl.inbox;
begin
    perform pg_advisory_xact_lock(
        hashtextextended(concat_ws('/', 'inbox', new_tenant, new_organization, new_address), 0)
    );
    select * into latest
    from noetl.inbox as i
    where i.tenant_id = new_tenant
        and i.organization_id = new_organization
        and i.address = new_address
    order by i.letter_id desc
    limit 1;
    if latest.letter_id is not null
        and (
            is_single or latest.taken_by is null
            or latest.taken_by = coalesce(open_wait, latest.taken_by)
        )
    then
        if latest.digest = new_digest then
            return query select 'repeated', latest.letter_id;
            return;
        end if;
        if is_single or latest.taken_by is null or open_wait is not null then
            return query select 'refused', latest.letter_id;
            return;
        end if;
    end if;
    return query
    insert into noetl.inbox (tenant_id, organization_id, address, digest, data, actor)
    values (new_tenant, new_organization, new_address, new_digest, new_data, new_actor)
    returning 'kept'::text, letter_id;
end
$$;

revoke all on function
noetl.keep_letter(text, text, text, text, bytea, text, boolean, json)
from public;
grant execute on function noetl.keep_letter(text, text, text, text, bytea, text, boolean, json)
to noetl_planner;
