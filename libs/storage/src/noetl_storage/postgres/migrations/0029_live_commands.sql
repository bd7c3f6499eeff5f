-- What waits or runs in one place, a tenant's part of a lane of a pool, is found without reading what
-- does in the others.

drop index noetl.command_live;
create index command_live on noetl.command (status, pool, lane, tenant_id, heard_at)
where status in ('ISSUED', 'RUNNING');
