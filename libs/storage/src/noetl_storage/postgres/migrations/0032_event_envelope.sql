-- The envelope of every event with all of its fields, whatever release wrote it. What follows from
-- other columns is derived here and not stored: no row is written again, and none grows.

-- Write a text as one segment of a locator: percent-encoded, or its digest where none spells it.
create function noetl.encode_segment(segment text) returns text
language sql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when segment in ('', '.', '..') or segment ~ '[\x01-\x1f]'
            then 'sha256/' || encode(sha256(convert_to(segment, 'UTF8')), 'hex')
        else (
            select string_agg(
                case
                    when piece ~ '^[A-Za-z0-9._~-]$' then piece
                    else regexp_replace(
                        upper(encode(convert_to(piece, 'UTF8'), 'hex')), '(..)', '%\1', 'g'
                    )
                end,
                '' order by place
            )
            from regexp_split_to_table(segment, '') with ordinality as p (piece, place)
        )
    end
$$;

-- A producer is stored without its owner; earlier releases stored the bare name of a planner.
create function noetl.locate_producer(producer text, tenant_id text, organization_id text)
returns text
language sql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when producer like 'noetl://%' then producer
        else
            'noetl://tenant/' || noetl.encode_segment(tenant_id)
            || '/org/' || noetl.encode_segment(organization_id)
            || case
                when producer ~ '^(cluster|region|zone|node|process|planner|worker)(/|$)'
                    then '/' || producer
                else '/planner/' || noetl.encode_segment(producer)
            end
    end
$$;

create view noetl.event_envelope with (security_invoker = true) as
select
    e.event_id, e.tenant_id, e.organization_id, e.execution_id, e.stream_id, e.stream_version,
    e.aggregate_id, e.aggregate_type, e.event_type, e.schema_name, e.schema_version, e.event_time,
    e.created_at as ingest_time,
    noetl.locate_producer(e.producer, e.tenant_id, e.organization_id) as producer,
    e.causation_id,
    coalesce(e.correlation_id, e.execution_id::text) as correlation_id,
    e.idempotency_key,
    coalesce(
        nullif(e.payload_ref::jsonb, 'null'),
        nullif(e.result::jsonb -> 'reference', 'null'),
        nullif(e.context::jsonb -> 'chunk' -> 'ref', 'null'),
        nullif(e.context::jsonb -> 'rows_ref', 'null'),
        nullif(e.context::jsonb -> 'collection_ref', 'null'),
        nullif(e.context::jsonb -> 'parts_ref', 'null'),
        nullif(e.context::jsonb -> 'workload_ref', 'null'),
        nullif(e.context::jsonb -> 'resume_ref', 'null'),
        nullif(e.context::jsonb -> 'result_ref', 'null')
    ) as payload_ref,
    coalesce(e.meta, '{}') as meta,
    e.context::jsonb as context, e.result::jsonb as result, e.error, e.envelope_checksum
from noetl.event as e;

comment on view noetl.event_envelope is
    'Every event with its whole envelope; event_time is when it happened, ingest_time when it was stored.';

revoke all on function noetl.encode_segment, noetl.locate_producer from public;
grant execute on function noetl.encode_segment, noetl.locate_producer to noetl_reader;
grant select on noetl.event_envelope to noetl_reader;

-- No release has written these: what is archived has noetl.archive_unit and noetl.archived_history,
-- and where workers are and what they could take is told by them, not stored.
drop table noetl.manifest_part;
drop table noetl.manifest;
alter table noetl.runtime drop column locality, drop column capacity;
