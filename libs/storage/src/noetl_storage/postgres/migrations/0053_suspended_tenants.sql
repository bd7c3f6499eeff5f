-- Tenants of which nothing new begins until they are resumed.

alter table noetl.tenant_quota add column is_suspended boolean not null default false;

comment on column noetl.tenant_quota.is_suspended is
    'Whether starts are refused and schedules wait; what runs goes on to its end.';

grant select (is_suspended) on noetl.tenant_quota to noetl_reaper;
