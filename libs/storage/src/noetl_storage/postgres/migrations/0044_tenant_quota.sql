-- How much of the installation one tenant may use.

create table noetl.tenant_quota (
    tenant_id text primary key check (tenant_id ~ '^[A-Za-z0-9_-]{1,64}$'),
    running_max integer check (running_max >= 0),
    calls_per_s double precision check (calls_per_s > 0),
    changed_at timestamptz not null default now()
);

comment on table noetl.tenant_quota is
    'What a tenant may use at most: executions that run, calls of the API a second. No value: no '
    'bound; no row: no bound at all.';

revoke all on noetl.tenant_quota from public;
grant select, insert, update, delete on noetl.tenant_quota to noetl_planner;
