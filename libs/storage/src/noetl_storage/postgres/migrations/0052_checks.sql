-- What the checks of datasets have found, by execution: few ends of steps tell of any.

create index event_checks on noetl.event (execution_id, stream_version)
where event_type = 'step.exit' and context @? '$.tasks.*.checks';
