-- Messages from outside, kept before anybody is told; and what parked commands wait for.

create table noetl.inbox (
    letter_id bigint generated always as identity primary key,
    tenant_id text not null,
    organization_id text not null,
    address text not null,
    digest text not null,
    data bytea not null,
    received_at timestamptz not null default now(),
    taken_by text
);

comment on column noetl.inbox.address is 'Holds the digest of a token, never the token.';
comment on column noetl.inbox.taken_by is 'The wait that was told, as command/key.';

create index inbox_address on noetl.inbox (tenant_id, organization_id, address, letter_id desc);
create unique index inbox_waiting on noetl.inbox (tenant_id, organization_id, address)
where taken_by is null;

alter table noetl.command add column wait json;

create index command_waiting on noetl.command (
    tenant_id, organization_id, (wait ->> 'address')
)
where wait is not null;

-- Keep a message, or say what is there already: kept, repeated or refused.
-- `open_wait` is the wait that is open at the address, if one is; a single address takes one ever.
create function noetl.keep_letter(
    new_tenant text,
    new_organization text,
    new_address text,
    new_digest text,
    new_data bytea,
    open_wait text,
    is_single boolean
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
    insert into noetl.inbox (tenant_id, organization_id, address, digest, data)
    values (new_tenant, new_organization, new_address, new_digest, new_data)
    returning 'kept'::text, letter_id;
end
$$;

-- Give a letter to the wait that it is for, with the request that tells its execution; once.
create function noetl.hand_over_letter(
    handed_id bigint,
    open_wait text,
    request_id text,
    execution_id bigint,
    tenant_id text,
    organization_id text,
    kind text,
    subject text,
    data bytea
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
    update noetl.inbox as i
    set taken_by = open_wait
    where i.letter_id = handed_id and i.taken_by is null;
    if not found then
        return false;
    end if;
    perform noetl.submit_request(
        request_id, execution_id, tenant_id, organization_id, kind, subject, data, request_id
    );
    return true;
end
$$;

revoke all on noetl.inbox from public;
revoke all on function noetl.keep_letter(text, text, text, text, bytea, text, boolean) from public;
revoke all on function
noetl.hand_over_letter(bigint, text, text, bigint, text, text, text, text, bytea)
from public;
grant execute on function noetl.keep_letter(text, text, text, text, bytea, text, boolean)
to noetl_planner;
grant execute on function
noetl.hand_over_letter(bigint, text, text, bigint, text, text, text, text, bytea)
to noetl_planner, noetl_reaper;
grant select on noetl.inbox to noetl_planner, noetl_reaper;
