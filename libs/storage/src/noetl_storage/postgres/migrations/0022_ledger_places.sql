-- Where in the ledger histories are, so that nobody walks those that have left it; and an index for
-- the past of one business object.

-- Ranges of executions, from low to before high, of which the ledger may have events: the months that
-- have a partition, and each execution in the one for all others.
create function noetl.list_places() returns table (low bigint, high bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $$
with recursive months as (
    select to_timestamp(substr(c.relname, 7), 'YYYY_MM') as began
    from pg_inherits as i
    inner join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'noetl.event'::regclass and c.relname ~ '^event_[0-9]{4}_[0-9]{2}$'
),
others as (
    select min(d.execution_id) as execution_id
    from noetl.event_default as d
    union all
    select (select min(d.execution_id) from noetl.event_default as d where d.execution_id > o.execution_id)
    from others as o
    where o.execution_id is not null
)
select noetl.snowflake_floor(m.began), noetl.snowflake_floor(m.began + interval '1 month')
from months as m
union all
select o.execution_id, o.execution_id + 1
from others as o
where o.execution_id is not null;
$$;

-- At most so many histories of an owner that may leave the ledger, or more of them: ended so long ago,
-- projected to their end, with nothing on its way, no parent that could still ask, not held, and not
-- archived up to their end. Months that have left the ledger are not looked at.
create or replace function noetl.list_due(
    tenant text, organization text, keep_s double precision, histories_max integer
) returns table (
    execution_id bigint, first_version bigint, last_version bigint, previous text, checksum text
)
language sql stable
as $$
select
    h.execution_id, coalesce(a.last_version, 0) + 1, h.version, coalesce(a.checksum, ''), h.checksum
from noetl.list_places() as l
inner join noetl.execution_head as h on h.execution_id >= l.low and h.execution_id < l.high
inner join noetl.execution as e on e.execution_id = h.execution_id
inner join noetl.projection_position as p
    on p.execution_id = h.execution_id and p.version = h.version
left join lateral (
    select k.last_version, k.checksum
    from noetl.archived_history as k
    where k.execution_id = h.execution_id
    order by k.first_version desc
    limit 1
) as a on true
where h.tenant_id = tenant
    and h.organization_id = organization
    and e.status not in ('PENDING', 'RUNNING', 'PAUSED')
    and e.ended_at <= now() - make_interval(secs => keep_s)
    and h.updated_at <= now() - make_interval(secs => keep_s)
    and coalesce(a.last_version, 0) < h.version
    and not noetl.is_held(tenant, organization, h.execution_id)
    and not exists (select from noetl.outbox as o where o.execution_id = h.execution_id)
    and not exists (
        select from noetl.request as r
        where r.execution_id = h.execution_id and r.settled_at is null
    )
    and not exists (
        select from noetl.execution as up
        where up.execution_id = e.parent_execution_id and up.ended_at is null
    )
order by h.execution_id
limit histories_max;
$$;

create index event_object on noetl.event (execution_id, aggregate_id, stream_version)
where event_type = 'business_object.changed';

revoke all on function noetl.list_places() from public;
grant execute on function noetl.list_places() to noetl_archivist;
