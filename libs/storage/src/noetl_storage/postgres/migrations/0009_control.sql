-- A paused execution is live: its bounds in time go on counting.
drop index noetl.execution_live;
create index execution_live on noetl.execution (execution_id)
where status in ('PENDING', 'RUNNING', 'PAUSED');

-- The outcome of a loop is asked for by its run, as that of a call is.
create index event_loop_ends on noetl.event (execution_id, node_id)
where event_type in ('loop.done', 'loop.failed');
