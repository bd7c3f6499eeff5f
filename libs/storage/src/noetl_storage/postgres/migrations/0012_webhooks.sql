-- What starts playbooks by calls from outside; the secrets are credentials, sealed elsewhere.

create table noetl.webhook (
    tenant_id text not null,
    organization_id text not null,
    name text not null,
    path text not null,
    version integer check (version > 0),
    credential text,
    inputs json not null default '{}',
    body_bytes_max integer not null check (body_bytes_max > 0),
    is_enabled boolean not null default true,
    updated_at timestamptz not null default now(),
    primary key (tenant_id, organization_id, name)
);

comment on column noetl.webhook.credential is 'Null: calls are not signed, and anybody may start it.';

revoke all on noetl.webhook from public;
grant select, insert, update, delete on noetl.webhook to noetl_planner;
