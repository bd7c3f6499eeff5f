-- A reference in an event names the stored content: where a copy may be mapped is a hint beside it
-- and can never stand alone. What was written before is not read again for it.
alter table noetl.event add constraint event_references_are_stored check (
    coalesce(result -> 'reference', 'null') = 'null'
    or (
        result -> 'reference' ->> 'uri' like 'noetl://%'
        and length(result -> 'reference' ->> 'sha256') = 64
    ) is true
) not valid;
alter table noetl.event add constraint event_payload_ref_is_stored check (
    coalesce(payload_ref, 'null') = 'null'
    or (payload_ref ->> 'uri' like 'noetl://%' and length(payload_ref ->> 'sha256') = 64) is true
) not valid;
alter table noetl.event add constraint event_context_refs_are_stored check (
    (
        (context -> 'rows_ref' ->> 'uri' like 'noetl://%') is true
        or coalesce(context -> 'rows_ref', 'null') = 'null'
    )
    and (
        (context -> 'parts_ref' ->> 'uri' like 'noetl://%') is true
        or coalesce(context -> 'parts_ref', 'null') = 'null'
    )
    and (
        (context -> 'resume_ref' ->> 'uri' like 'noetl://%') is true
        or coalesce(context -> 'resume_ref', 'null') = 'null'
    )
    and (
        (context -> 'workload_ref' ->> 'uri' like 'noetl://%') is true
        or coalesce(context -> 'workload_ref', 'null') = 'null'
    )
    and (
        (context -> 'collection_ref' ->> 'uri' like 'noetl://%') is true
        or coalesce(context -> 'collection_ref', 'null') = 'null'
    )
) not valid;
