-- Messages on their way out, requests on their way in, and who may handle them.

create table noetl.outbox (
    outbox_id bigint generated always as identity primary key,
    execution_id bigint not null,
    subject text not null,
    message_id text not null,
    data bytea not null,
    codec text not null,
    lease_owner text,
    leased_until timestamptz,
    created_at timestamptz not null default now()
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);

create index outbox_execution on noetl.outbox (execution_id, outbox_id);
create index outbox_leased on noetl.outbox (execution_id, outbox_id, leased_until)
where leased_until is not null;

create table noetl.request (
    request_id text primary key,
    execution_id bigint not null,
    tenant_id text not null,
    organization_id text not null,
    kind text not null,
    subject text not null,
    data bytea not null,
    idempotency_key text,
    sends integer not null default 1,
    created_at timestamptz not null default now(),
    sent_at timestamptz not null default now(),
    settled_at timestamptz
) with (fillfactor = 70);

create unique index request_idempotency_key on noetl.request (tenant_id, idempotency_key)
where idempotency_key is not null;
create index request_waiting on noetl.request (sent_at) where settled_at is null;

create table noetl.execution_shard (
    shard_id integer primary key,
    owner_instance text,
    epoch bigint not null default 0,
    leased_until timestamptz,
    updated_at timestamptz not null default now()
) with (fillfactor = 50);

create table noetl.runtime (
    runtime_id bigint generated always as identity primary key,
    instance text not null unique,
    kind text not null,
    node_number integer not null check (node_number between 0 and 1023),
    locality jsonb,
    capacity jsonb,
    leased_until timestamptz not null,
    created_at timestamptz not null default now(),
    heartbeat_at timestamptz not null default now()
) with (fillfactor = 70);

create index runtime_kind on noetl.runtime (kind, leased_until);

create table noetl.role_lease (
    role text primary key,
    owner text not null,
    leased_until timestamptz not null
) with (fillfactor = 50);
