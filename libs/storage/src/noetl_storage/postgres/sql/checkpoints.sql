-- name: list_latest :many
-- The latest epoch of each of the shards $1 of $2.
select distinct on (c.shard_id)
    c.shard_id, c.shard_count, c.epoch, c.last_event_id, c.through_at, c.set_aside, c.committed_at
from noetl.checkpoint as c
where c.shard_count = $2 and c.shard_id = any($1::integer[])
order by c.shard_id, c.epoch desc;

-- name: commit :many
-- Commit the next epoch of the shards $1 of $2, projected up to the events $3; not vouched for are
-- the executions $4 and the last $5 seconds; of each shard $6 epochs are kept.
with shard as (
    select s.shard_id, s.event_id
    from unnest($1::integer[], $3::bigint[]) as s (shard_id, event_id)
),
latest as (
    select distinct on (c.shard_id) c.shard_id, c.epoch, c.last_event_id, c.through_at
    from noetl.checkpoint as c
    where c.shard_count = $2 and c.shard_id = any($1::integer[])
    order by c.shard_id, c.epoch desc
),
compared as (
    select case
        when count(*) = cardinality($1::integer[]) then min(l.through_at)
        else '-infinity'::timestamptz
    end as since
    from latest as l
),
-- Once for all shards, and a shard's number for those alone that are behind: it takes microseconds.
behind as materialized (
    select h.execution_id, h.updated_at
    from noetl.execution_head as h
    left join noetl.projection_position as p on p.execution_id = h.execution_id
    where h.updated_at >= (select c.since from compared as c)
        and h.version > coalesce(p.version, 0)
        and h.execution_id <> all($4::bigint[])
),
oldest as (
    select noetl.shard_of(b.execution_id, $2) as shard_id, min(b.updated_at) as updated_at
    from behind as b
    group by 1
),
outdated as (
    delete from noetl.checkpoint as c
    using latest as l
    where c.shard_id = l.shard_id and c.shard_count = $2 and c.epoch <= l.epoch + 1 - $6::integer
)
insert into noetl.checkpoint (
    shard_id, shard_count, epoch, last_event_id, through_at, set_aside
)
select
    s.shard_id, $2, coalesce(l.epoch, 0) + 1, greatest(s.event_id, l.last_event_id),
    greatest(
        l.through_at,
        least(
            now() - make_interval(secs => $5),
            o.updated_at
        )
    ),
    array(
        select a.execution_id
        from unnest($4::bigint[]) as a (execution_id)
        where noetl.shard_of(a.execution_id, $2) = s.shard_id
        order by a.execution_id
    )
from shard as s
left join latest as l on l.shard_id = s.shard_id
left join oldest as o on o.shard_id = s.shard_id
on conflict do nothing
returning shard_id, shard_count, epoch, last_event_id, through_at, set_aside, committed_at;
