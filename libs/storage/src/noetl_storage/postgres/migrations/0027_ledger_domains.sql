-- What events may hold is said of the types of their columns: of a check PostgreSQL reads the text and
-- plans it again for each statement that inserts, which took an eighth of an append; what a domain
-- says is kept as it is. What was written before is not read again for it.
alter table noetl.event drop constraint event_result_shape;
alter table noetl.event drop constraint event_references_are_stored;
alter table noetl.event drop constraint event_payload_ref_is_stored;
alter table noetl.event drop constraint event_context_refs_are_stored;

-- Columns become domains that say nothing yet, for which no row is written again.
create domain noetl.event_context as jsonb;
create domain noetl.event_result as jsonb;
create domain noetl.event_payload_ref as jsonb;
alter table noetl.event
    alter column context type noetl.event_context,
    alter column result type noetl.event_result,
    alter column payload_ref type noetl.event_payload_ref;

-- A reference in an event names the stored content: where a copy may be mapped is a hint beside it
-- and can never stand alone.
alter domain noetl.event_context add constraint context_refs_are_stored check (
    not value ?| array['rows_ref', 'parts_ref', 'resume_ref', 'workload_ref', 'collection_ref']
    or (
        (
            (value -> 'rows_ref' ->> 'uri' like 'noetl://%') is true
            or coalesce(value -> 'rows_ref', 'null') = 'null'
        )
        and (
            (value -> 'parts_ref' ->> 'uri' like 'noetl://%') is true
            or coalesce(value -> 'parts_ref', 'null') = 'null'
        )
        and (
            (value -> 'resume_ref' ->> 'uri' like 'noetl://%') is true
            or coalesce(value -> 'resume_ref', 'null') = 'null'
        )
        and (
            (value -> 'workload_ref' ->> 'uri' like 'noetl://%') is true
            or coalesce(value -> 'workload_ref', 'null') = 'null'
        )
        and (
            (value -> 'collection_ref' ->> 'uri' like 'noetl://%') is true
            or coalesce(value -> 'collection_ref', 'null') = 'null'
        )
    )
) not valid;
alter domain noetl.event_result add constraint result_shape check (
    value is null
    or (
        jsonb_typeof(value) = 'object'
        and value - array['status', 'reference', 'parent_ref', 'context'] = '{}'::jsonb
        and octet_length(value::text) <= 131072
    )
) not valid;
alter domain noetl.event_result add constraint references_are_stored check (
    coalesce(value -> 'reference', 'null') = 'null'
    or (
        value -> 'reference' ->> 'uri' like 'noetl://%'
        and length(value -> 'reference' ->> 'sha256') = 64
    ) is true
) not valid;
alter domain noetl.event_payload_ref add constraint payload_ref_is_stored check (
    coalesce(value, 'null') = 'null'
    or (value ->> 'uri' like 'noetl://%' and length(value ->> 'sha256') = 64) is true
) not valid;
