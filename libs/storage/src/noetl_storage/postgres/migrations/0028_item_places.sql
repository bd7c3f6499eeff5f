-- The outcomes of a loop's items in item order, and the outcome of a run as a whole beside them, without
-- looking at every item for each page of them.

drop index noetl.event_item_results;
create index event_item_places on noetl.event (
    execution_id, node_id, ((context ->> 'item_index')::bigint), stream_version
)
where event_type in ('call.done', 'call.error');
