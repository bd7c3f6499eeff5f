-- A result may carry 32 KiB of selected fields and 8 KiB of its own beside its reference; jsonb
-- writes them with more spaces and longer numbers than they came with.
alter table noetl.event drop constraint event_result_shape;
alter table noetl.event add constraint event_result_shape check (
    result is null
    or (
        jsonb_typeof(result) = 'object'
        and result - array['status', 'reference', 'parent_ref', 'context'] = '{}'::jsonb
        and octet_length(result::text) <= 131072
    )
);
