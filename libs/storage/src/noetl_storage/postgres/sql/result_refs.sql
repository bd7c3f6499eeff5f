-- name: write :exec
-- Write the stored results $1, a JSON array, as far as they are of the executions $2.
insert into noetl.result_ref (
    ref_id, execution_id, tenant_id, organization_id, run_id, step_name, is_error,
    entered_version, reference, parent_ref_id, created_at
)
select
    r.ref_id, r.execution_id, r.tenant_id, r.organization_id, r.run_id, r.step_name,
    r.is_error, r.entered_version, r.reference, r.parent_ref_id, r.created_at
from json_populate_recordset(null::noetl.result_ref, $1::json) as r
where r.execution_id = any($2::bigint[])
on conflict (ref_id) do nothing;

-- name: clear :exec
-- Forget the stored results of execution $1.
delete from noetl.result_ref
where execution_id = $1;

-- name: list :many
-- The stored results of execution $1, in the order in which they came.
select
    ref_id, execution_id, tenant_id, organization_id, run_id, step_name, is_error,
    entered_version, reference, parent_ref_id, created_at
from noetl.result_ref
where execution_id = $1
order by ref_id;

-- name: trace :many
-- At most $3 stored results: the latest of step $2 in execution $1, the one before it, and so on.
with recursive chain as (
    (
        select
            1 as depth, r.ref_id, r.run_id, r.step_name, r.is_error, r.entered_version,
            r.reference, r.parent_ref_id, r.created_at
        from noetl.result_ref as r
        where r.execution_id = $1 and r.step_name = $2
        order by r.ref_id desc
        limit 1
    )
    union all
    select
        c.depth + 1, p.ref_id, p.run_id, p.step_name, p.is_error, p.entered_version,
        p.reference, p.parent_ref_id, p.created_at
    from chain as c
    inner join noetl.result_ref as p on p.ref_id = c.parent_ref_id and p.execution_id = $1
    where c.depth < $3
)
select ref_id, run_id, step_name, is_error, entered_version, reference, parent_ref_id, created_at
from chain
order by depth;
