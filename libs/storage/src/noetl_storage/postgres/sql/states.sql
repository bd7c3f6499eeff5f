-- name: change :one
-- Move values of state, which $1 lists, to their next revisions; see the function.
select noetl.change_states($1), now() as changed_at;

-- name: find :one
-- The value of state $4 of playbook $3 of owner $1, $2.
select name, type, value, revision
from noetl.state
where tenant_id = $1 and organization_id = $2 and path = $3 and name = $4;

-- name: list_states :many
-- At most $6 values of state of owner $1, $2, perhaps of playbook $3, by path and name, after $4, $5.
select s.path, s.name, c.type, c.value, c.revision, c.execution_id, c.step, c.changed_by, c.reason,
    c.changed_at
from noetl.state as s
inner join noetl.state_change as c
    on s.tenant_id = c.tenant_id
    and s.organization_id = c.organization_id
    and s.path = c.path
    and s.name = c.name
    and s.revision = c.revision
where s.tenant_id = $1
    and s.organization_id = $2
    and ($3::text is null or s.path = $3)
    and (s.path, s.name) > ($4, $5)
order by s.path, s.name
limit $6;

-- name: list_changes :many
-- At most $6 changes of state $4 of playbook $3 of owner $1, $2, the latest first, before revision $5.
select path, name, type, value, revision, execution_id, step, changed_by, reason, changed_at
from noetl.state_change
where tenant_id = $1
    and organization_id = $2
    and path = $3
    and name = $4
    and ($5::bigint is null or revision < $5)
order by revision desc
limit $6;

-- name: remove :one
-- Remove state $4 of playbook $3 of owner $1, $2 at revision $5; see the function.
select noetl.remove_state($1, $2, $3, $4, $5);
