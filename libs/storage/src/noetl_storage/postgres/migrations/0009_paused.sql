-- A paused execution is live: its bounds in time go on counting.
drop index noetl.execution_live;
create index execution_live on noetl.execution (execution_id)
where status in ('PENDING', 'RUNNING', 'PAUSED');
