-- What starts playbooks by messages; the messages themselves are JetStream's.

create table noetl.trigger (
    tenant_id text not null,
    organization_id text not null,
    name text not null,
    subject text not null,
    path text not null,
    version integer check (version > 0),
    inputs json not null default '{}',
    body_bytes_max integer not null check (body_bytes_max > 0),
    is_enabled boolean not null default true,
    updated_at timestamptz not null default now(),
    primary key (tenant_id, organization_id, name)
);

create unique index trigger_subject on noetl.trigger (tenant_id, organization_id, subject);

comment on column noetl.trigger.subject is 'What follows noetl.triggers.<tenant>.<org>.; wildcards.';

revoke all on noetl.trigger from public;
grant select, insert, update, delete on noetl.trigger to noetl_planner;
