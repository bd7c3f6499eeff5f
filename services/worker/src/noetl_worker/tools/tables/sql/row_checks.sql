-- name: judge_rows :many
-- Tell of each row of a batch which conditions it meets.
select {conditions} from {batch};

-- name: bind_condition :many
-- Read a condition: where rows are chosen, DuckDB refuses what looks at several, or makes more.
select {condition} as is_met from {batch} where {condition};

-- name: begin_values :exec
-- Keep the values of a first batch that are compared with those of other rows.
create table {kept} as select {values} from {batch} where {is_whole};

-- name: add_values :exec
-- Keep the values of a further batch.
insert into {kept} select {values} from {batch} where {is_whole};

-- name: find_newest :one
-- Return the latest moment of a batch, in seconds since 1970: as a moment it would come back in the zone of this machine.
select case when isinf(newest) then 'infinity'::double else epoch(newest) end from (select max(cast({column} as timestamptz)) as newest from {batch});

-- name: count_repeated :one
-- Count the rows whose values another row has had before.
select coalesce(sum(n - 1), 0)::bigint from (select count(*) as n from {kept} group by {values} having n > 1);

-- name: list_repeated :many
-- Return some of the values that several rows have.
select {columns} from {kept} group by {values} having count(*) > 1 order by all limit {rows_max};

-- name: begin_others :exec
-- Keep the values of another input that those of this dataset must be among.
create table {others} as select distinct other from {batch};

-- name: add_others :exec
-- Keep further values of the other input.
insert into {others} select distinct other from {batch};

-- name: begin_no_others :exec
-- Keep nothing of another input that has no rows.
create table {others} as select v0 as other from {kept} limit 0;

-- name: count_orphans :one
-- Count the rows whose value is not among those of the other input.
select count(*) from {kept} anti join {others} on v0 = other;

-- name: list_orphans :many
-- Return some of the values that are not among those of the other input.
select {columns} from {kept} anti join {others} on v0 = other order by all limit {rows_max};
