-- What waits in a lane of a pool is found without reading what waits in the others.

create index command_issued on noetl.command (pool, lane, heard_at) where status = 'ISSUED';
