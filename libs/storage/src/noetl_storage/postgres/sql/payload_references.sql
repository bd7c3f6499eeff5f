-- name: list_owners :many
-- Whose histories there are.
select distinct tenant_id, organization_id
from noetl.execution_head
order by tenant_id, organization_id;

-- name: held_since :one
-- When the oldest execution or request of owner $1, $2 began that is not done with.
-- $3 are the statuses of live executions; one whose projection lags counts as live.
select least(
    (
        select min(h.created_at)
        from noetl.execution_head as h
        left join noetl.execution as e on e.execution_id = h.execution_id
        left join noetl.projection_position as p on p.execution_id = h.execution_id
        where h.tenant_id = $1
            and h.organization_id = $2
            and (
                e.status is null or e.status = any($3::text[]) or p.version is distinct from h.version
            )
    ),
    (
        select min(r.created_at)
        from noetl.request as r
        where r.tenant_id = $1 and r.organization_id = $2 and r.settled_at is null
    )
) as since;

-- name: list_histories :many
-- At most $4 histories of owner $1, $2 after execution $3, and how many events each has.
select execution_id, version
from noetl.execution_head
where tenant_id = $1 and organization_id = $2 and execution_id > $3
order by execution_id
limit $4;

-- name: list_in_events :many
-- Runs of digits with a digest in them, in the events of executions $1 after version $2 and up to $3.
-- A result that is older than its own time to live, in seconds beside its reference, is no mention
-- of its content when its execution has ended, with none of the statuses $4.
select distinct m.found[1] as run
from noetl.event as e
cross join lateral (
    select case
        when jsonb_typeof(e.result -> 'context' -> 'ttl_s') = 'number' then
            extract(epoch from now() - e.created_at)
            > (e.result -> 'context' ->> 'ttl_s')::double precision
            and exists (
                select
                from noetl.execution_head as h
                inner join noetl.execution as x on x.execution_id = h.execution_id
                inner join noetl.projection_position as p
                    on p.execution_id = h.execution_id and p.version = h.version
                where h.execution_id = e.execution_id and x.status <> all($4::text[])
            )
        else false
    end as is_over
) as t
cross join lateral regexp_matches(
    case
        when t.is_over then concat_ws(
            ' ',
            e.context::text, (e.result - 'reference')::text, e.error::text, e.meta::text,
            replace(e.exact, e.result -> 'reference' ->> 'sha256', '')
        )
        else concat_ws(
            ' ',
            e.context::text, e.result::text, e.error::text, e.payload_ref::text, e.meta::text,
            e.exact
        )
    end,
    '[0-9a-f]{64,}',
    'g'
) as m (found)
where e.execution_id = any($1::bigint[]) and e.stream_version > $2 and e.stream_version <= $3;

-- name: list_known :many
-- Those of the executions $3 of which owner $1, $2 has a history.
select execution_id
from noetl.execution_head
where tenant_id = $1 and organization_id = $2 and execution_id = any($3::bigint[]);

-- name: list_beside :many
-- Runs of digits with a digest in them, in the schedules of owner $1, $2, and in the messages that
-- nobody was told of: one may never be taken, so it holds what it mentions and nothing else.
select distinct m.found[1] as run
from noetl.schedule as s
cross join lateral regexp_matches(s.workload::text, '[0-9a-f]{64,}', 'g') as m (found)
where s.tenant_id = $1 and s.organization_id = $2
union
select m.found[1]
from noetl.inbox as i
cross join lateral regexp_matches(encode(i.data, 'escape'), '[0-9a-f]{64,}', 'g') as m (found)
where i.tenant_id = $1 and i.organization_id = $2 and i.taken_by is null;

-- name: has_events :one
-- Whether the ledger still holds an event of owner $1, $2.
select exists (
    select from noetl.event
    where tenant_id = $1 and organization_id = $2
);
