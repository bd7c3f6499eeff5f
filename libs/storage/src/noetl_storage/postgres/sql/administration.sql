-- name: lock_head :one
-- The end of the stream of tenant $1 and organization $2, held until the transaction ends.
select h.version, h.checksum
from noetl.lock_administration_head($1, $2) as h;

-- name: append :exec
-- Append a record; see the function.
select noetl.append_administration($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: list_records :many
-- At most $8 records of tenant $1 and organization $2 after version $3: of actor $4, action $5,
-- since $6 and before $9, with outcome $7, where these are said.
select *
from noetl.administration_event
where tenant_id = $1
    and organization_id = $2
    and version > $3
    and (
        $4::text is null
        or $4 in (
            actor ->> 'id', actor ->> 'name', actor ->> 'key_prefix',
            actor -> 'on_behalf_of' ->> 'id', actor -> 'on_behalf_of' ->> 'name',
            actor -> 'on_behalf_of' ->> 'key_prefix'
        )
    )
    and ($5::text is null or action = $5 or starts_with(action, $5 || '.'))
    and ($6::timestamptz is null or event_time >= $6)
    and ($7::text is null or outcome = $7)
    and ($9::timestamptz is null or event_time < $9)
order by version
limit $8;

-- name: list_latest :many
-- The latest $7 records of tenant $1 and organization $2: of actor $3, action $4, since $5 and
-- before $8, with outcome $6, where these are said.
select *
from noetl.administration_event
where tenant_id = $1
    and organization_id = $2
    and (
        $3::text is null
        or $3 in (
            actor ->> 'id', actor ->> 'name', actor ->> 'key_prefix',
            actor -> 'on_behalf_of' ->> 'id', actor -> 'on_behalf_of' ->> 'name',
            actor -> 'on_behalf_of' ->> 'key_prefix'
        )
    )
    and ($4::text is null or action = $4 or starts_with(action, $4 || '.'))
    and ($5::timestamptz is null or event_time >= $5)
    and ($6::text is null or outcome = $6)
    and ($8::timestamptz is null or event_time < $8)
order by version desc
limit $7;
