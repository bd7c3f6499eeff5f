-- The planner that owns the shard of a new execution keeps its request together with what it decided
-- on it: one transaction, and no message that says what has been decided already.

-- Keep a request that is settled by the transaction which keeps it; refuse one that is known, and one
-- for a playbook that is no longer the latest of its path where it was to be that.
create function noetl.keep_begun_request(
    request_id text,
    execution_id bigint,
    tenant_id text,
    organization_id text,
    kind text,
    subject text,
    data bytea,
    idempotency_key text,
    latest_catalog bigint
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
    perform from noetl.catalog as later
    inner join noetl.catalog as known
        on later.tenant_id = known.tenant_id
        and later.organization_id = known.organization_id
        and later.path = known.path
        and later.version > known.version
    where known.catalog_id = latest_catalog;
    if found then
        raise exception 'catalog entry % is not the latest of its path', latest_catalog
            using errcode = 'NT006';
    end if;
    insert into noetl.request (
        request_id, execution_id, tenant_id, organization_id, kind, subject, data, idempotency_key,
        sends, settled_at
    )
    values (
        request_id, execution_id, tenant_id, organization_id, kind, subject, data, idempotency_key,
        0, now()
    )
    on conflict do nothing;
    if not found then
        raise exception 'request %, or its idempotency key, was kept before', request_id
            using errcode = 'NT005';
    end if;
end
$$;

revoke all on function noetl.keep_begun_request from public;
grant execute on function noetl.keep_begun_request to noetl_planner;
