-- Drafts: texts that were run without being registered. Their versions are below zero, so that no
-- look-up of the latest version, and no list of playbooks, finds them.

alter table noetl.catalog drop constraint catalog_version_check;
alter table noetl.catalog add constraint catalog_version_check check (version <> 0);

-- Keep a playbook as the next version of its path, unless the latest one is the same: also as this
-- release reads it.
create or replace function noetl.register_playbook(
    new_id bigint,
    new_tenant text,
    new_organization text,
    new_path text,
    new_digest text,
    new_source text,
    new_model json,
    new_diagnostics json
) returns setof noetl.catalog
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    latest noetl.catalog;
begin
    perform pg_advisory_xact_lock(
        hashtextextended(concat_ws('/', 'catalog', new_tenant, new_organization, new_path), 0)
    );
    select * into latest
    from noetl.catalog as c
    where c.tenant_id = new_tenant
        and c.organization_id = new_organization
        and c.path = new_path
        and c.version > 0
    order by c.version desc
    limit 1;
    if latest.digest = new_digest and latest.model::text = new_model::text then
        return next latest;
        return;
    end if;
    return query
    insert into noetl.catalog (
        catalog_id, tenant_id, organization_id, path, version, digest, source, model, diagnostics
    )
    values (
        new_id, new_tenant, new_organization, new_path, coalesce(latest.version, 0) + 1,
        new_digest, new_source, new_model, new_diagnostics
    )
    returning *;
end
$$;

-- Keep a playbook as a draft of its path; the same text keeps its number.
create function noetl.keep_draft(
    new_id bigint,
    new_tenant text,
    new_organization text,
    new_path text,
    new_digest text,
    new_source text,
    new_model json,
    new_diagnostics json
) returns setof noetl.catalog
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    known noetl.catalog;
    lowest integer;
begin
    perform pg_advisory_xact_lock(
        hashtextextended(concat_ws('/', 'catalog', new_tenant, new_organization, new_path), 0)
    );
    select * into known
    from noetl.catalog as c
    where c.tenant_id = new_tenant
        and c.organization_id = new_organization
        and c.path = new_path
        and c.version < 0
        and c.digest = new_digest
        and c.model::text = new_model::text
    limit 1;
    if known.catalog_id is not null then
        return next known;
        return;
    end if;
    select min(c.version) into lowest
    from noetl.catalog as c
    where c.tenant_id = new_tenant
        and c.organization_id = new_organization
        and c.path = new_path
        and c.version < 0;
    return query
    insert into noetl.catalog (
        catalog_id, tenant_id, organization_id, path, version, digest, source, model, diagnostics
    )
    values (
        new_id, new_tenant, new_organization, new_path, coalesce(lowest, 0) - 1,
        new_digest, new_source, new_model, new_diagnostics
    )
    returning *;
end
$$;

revoke execute on function
noetl.keep_draft(bigint, text, text, text, text, text, json, json) from public;
grant execute on function
noetl.keep_draft(bigint, text, text, text, text, text, json, json) to noetl_planner;
