-- Who may do what: bindings of roles, API keys as hashes, and what was done outside an execution.

create table noetl.role_binding (
    binding_id bigint primary key,
    tenant_id text not null,
    organization_id text not null,
    subject_kind text not null check (
        subject_kind in ('person', 'group', 'service_account', 'worker')
    ),
    issuer text not null,
    subject text not null,
    role text not null,
    path_prefix text not null,
    created_at timestamptz not null default now(),
    created_by text not null,
    unique (tenant_id, organization_id, subject_kind, issuer, subject, role, path_prefix)
);

comment on table noetl.role_binding is
    'A role for a person, a group, a service account or a worker. The organization * is all of the '
    'tenant''s; an empty issuer is any; an empty path prefix is all playbooks.';

create index role_binding_subject on noetl.role_binding (subject_kind, subject);

create table noetl.api_key (
    key_prefix text primary key,
    tenant_id text not null,
    organization_id text not null,
    account text not null,
    account_kind text not null check (account_kind in ('service_account', 'worker')),
    digest bytea not null check (octet_length(digest) = 32),
    created_at timestamptz not null default now(),
    created_by text not null,
    expires_at timestamptz,
    used_at timestamptz,
    revoked_at timestamptz
);

comment on column noetl.api_key.digest is 'SHA-256 of the whole key, which is kept nowhere.';

create index api_key_account on noetl.api_key (tenant_id, organization_id, account);

create table noetl.administration_event (
    tenant_id text not null,
    organization_id text not null,
    version bigint not null check (version > 0),
    event_time timestamptz not null,
    action text not null,
    target text not null,
    outcome text not null check (outcome in ('done', 'refused')),
    actor json not null,
    details json not null,
    checksum text not null,
    recorded_at timestamptz not null default now(),
    primary key (tenant_id, organization_id, version)
);

comment on table noetl.administration_event is
    'What was done outside an execution, and what was refused; append-only. Each checksum covers '
    'the one before it.';

create table noetl.administration_head (
    tenant_id text not null,
    organization_id text not null,
    version bigint not null,
    checksum text not null,
    primary key (tenant_id, organization_id)
);

-- The end of a stream, held until the transaction ends: nobody else appends meanwhile.
create function noetl.lock_administration_head(
    of_tenant text, of_organization text
) returns table (version bigint, checksum text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    insert into noetl.administration_head (tenant_id, organization_id, version, checksum)
    values (of_tenant, of_organization, 0, '')
    on conflict do nothing;
    return query
    select h.version, h.checksum
    from noetl.administration_head as h
    where h.tenant_id = of_tenant and h.organization_id = of_organization
    for update;
end
$$;

-- Append what follows the end of a stream; anything else is refused.
create function noetl.append_administration(
    of_tenant text,
    of_organization text,
    new_version bigint,
    previous_checksum text,
    new_checksum text,
    new_time timestamptz,
    new_action text,
    new_target text,
    new_outcome text,
    new_actor json,
    new_details json
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update noetl.administration_head as h
    set version = new_version, checksum = new_checksum
    where h.tenant_id = of_tenant
        and h.organization_id = of_organization
        and h.version = new_version - 1
        and h.checksum = previous_checksum;
    if not found then
        raise exception 'the administration stream has moved on' using errcode = 'NT002';
    end if;
    insert into noetl.administration_event (
        tenant_id, organization_id, version, event_time, action, target, outcome, actor, details,
        checksum
    )
    values (
        of_tenant, of_organization, new_version, new_time, new_action, new_target, new_outcome,
        new_actor, new_details, new_checksum
    );
end
$$;

revoke all on noetl.role_binding, noetl.api_key from public;
revoke all on noetl.administration_event, noetl.administration_head from public;
revoke all on function noetl.lock_administration_head(text, text) from public;
revoke all on function noetl.append_administration(
    text, text, bigint, text, text, timestamptz, text, text, text, json, json
) from public;
grant select, insert, delete on noetl.role_binding to noetl_planner;
grant select, insert on noetl.api_key to noetl_planner;
grant update (used_at, revoked_at) on noetl.api_key to noetl_planner;
grant select on noetl.administration_event to noetl_planner;
grant execute on function noetl.lock_administration_head(text, text) to noetl_planner;
grant execute on function noetl.append_administration(
    text, text, bigint, text, text, timestamptz, text, text, text, json, json
) to noetl_planner;
