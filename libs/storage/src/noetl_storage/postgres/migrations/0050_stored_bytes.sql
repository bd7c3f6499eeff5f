-- How many bytes of the payload store one tenant may use, and how many it uses.

alter table noetl.tenant_quota add column stored_bytes_max bigint check (stored_bytes_max >= 0);

create table noetl.tenant_storage (
    tenant_id text primary key check (tenant_id ~ '^[A-Za-z0-9_-]{1,64}$'),
    stored_bytes bigint not null check (stored_bytes >= 0),
    counted_at timestamptz not null
);

comment on table noetl.tenant_storage is
    'What a tenant with a quota of stored bytes has in the payload store, as a reaper counted it.';

revoke all on noetl.tenant_storage from public;
grant select on noetl.tenant_storage to noetl_planner, noetl_reaper;
grant insert, update on noetl.tenant_storage to noetl_reaper;
grant select (tenant_id, stored_bytes_max) on noetl.tenant_quota to noetl_reaper;
