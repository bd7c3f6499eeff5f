-- What is registered and what is kept beside the ledger.

create table noetl.catalog (
    catalog_id bigint primary key,
    tenant_id text not null,
    organization_id text not null,
    path text not null,
    version integer not null check (version > 0),
    digest text not null,
    source text not null,
    model json not null,
    diagnostics json not null,
    created_at timestamptz not null default now(),
    unique (tenant_id, organization_id, path, version)
);

-- Keep a playbook as the next version of its path, unless the latest one is the same.
create function noetl.register_playbook(
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
    order by c.version desc
    limit 1;
    if latest.digest = new_digest then
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

create table noetl.credential (
    tenant_id text not null,
    organization_id text not null,
    name text not null,
    version integer not null check (version > 0),
    kind text not null,
    key_id text not null,
    nonce text not null,
    ciphertext text not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, organization_id, name, version)
);

comment on table noetl.credential is 'Sealed: the key that opens them is never in the database.';

create table noetl.schedule (
    schedule_id bigint primary key,
    tenant_id text not null,
    organization_id text not null,
    name text not null,
    path text not null,
    workload jsonb not null default '{}',
    cron text,
    interval_s double precision,
    timezone text not null default 'UTC',
    is_enabled boolean not null default true,
    next_at timestamptz,
    last_at timestamptz,
    created_at timestamptz not null default now(),
    unique (tenant_id, organization_id, name)
);

create table noetl.checkpoint (
    execution_id bigint not null,
    shard_id integer not null,
    epoch bigint not null,
    last_event_id bigint not null,
    committed_at timestamptz not null default now(),
    primary key (execution_id, epoch)
);

create table noetl.result_ref (
    ref_id bigint primary key,
    execution_id bigint not null,
    tenant_id text not null,
    organization_id text not null,
    step_name text,
    reference jsonb not null,
    parent_ref_id bigint references noetl.result_ref (ref_id),
    created_at timestamptz not null default now()
);

create index result_ref_execution on noetl.result_ref (execution_id);
create index result_ref_parent on noetl.result_ref (parent_ref_id) where parent_ref_id is not null;

create table noetl.manifest (
    manifest_id bigint primary key,
    execution_id bigint not null,
    tenant_id text not null,
    organization_id text not null,
    terminal_ref jsonb,
    chain_depth integer not null,
    first_version bigint not null,
    last_version bigint not null,
    checksum text not null,
    created_at timestamptz not null default now()
);

create index manifest_execution on noetl.manifest (execution_id);

create table noetl.manifest_part (
    manifest_id bigint not null references noetl.manifest (manifest_id),
    part integer not null,
    step_name text,
    envelope jsonb,
    reference jsonb,
    primary key (manifest_id, part)
);
