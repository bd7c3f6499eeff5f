-- name: put :exec
-- Keep a rule; one that waits for something else than before is not told what ended before now.
insert into noetl.notification_rule as r (
    tenant_id, organization_id, name, pattern, causes, longer_than_s, playbook, actor
)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (tenant_id, organization_id, name) do update
set pattern = excluded.pattern,
    causes = excluded.causes,
    longer_than_s = excluded.longer_than_s,
    playbook = excluded.playbook,
    actor = excluded.actor,
    watched_from = case
        when (r.pattern, r.causes, r.longer_than_s)
            = (excluded.pattern, excluded.causes, excluded.longer_than_s)
            then r.watched_from
        else now()
    end;

-- name: find :one
-- The rule of tenant $1 and organization $2 that is named $3.
select *
from noetl.notification_rule
where tenant_id = $1 and organization_id = $2 and name = $3;

-- name: list_rules :many
-- At most $3 rules of tenant $1 and organization $2, by name.
select *
from noetl.notification_rule
where tenant_id = $1 and organization_id = $2
order by name collate "C"
limit $3;

-- name: remove :one
-- Remove the rule of tenant $1 and organization $2 that is named $3.
delete from noetl.notification_rule
where tenant_id = $1 and organization_id = $2 and name = $3
returning name;

-- name: list_due :many
-- At most $2 ends since $1 that a rule waits for and nobody was told of, the earliest first.
select
    r.*, e.execution_id, e.path, e.status, e.started_at, e.ended_at, e.error, c.cause,
    now() as seen_at
from noetl.notification_rule as r
inner join noetl.execution as e
    on e.tenant_id = r.tenant_id and e.organization_id = r.organization_id
cross join lateral (
    select case e.status when 'FAILED' then 'failed' else 'recovered' end as cause
) as c
where e.ended_at >= $1
    and e.ended_at >= r.watched_from
    and e.status in ('FAILED', 'COMPLETED')
    and e.parent_execution_id is null
    and c.cause = any(r.causes)
    and (
        r.pattern in ('*', e.path)
        or (right(r.pattern, 2) = '/*' and starts_with(e.path, left(r.pattern, -1)))
    )
    and e.ended_at - coalesce(e.started_at, e.ended_at) >= make_interval(secs => r.longer_than_s)
    and not exists (
        select from noetl.notification as n
        where n.execution_id = e.execution_id and n.rule_id = r.rule_id and n.cause = c.cause
    )
    and not exists (select from noetl.notification as n where n.delivered_by = e.execution_id)
    and (
        e.status = 'FAILED'
        or (
            select b.status
            from noetl.execution as b
            where b.tenant_id = e.tenant_id
                and b.organization_id = e.organization_id
                and b.path = e.path
                and b.execution_id < e.execution_id
                and b.status in ('FAILED', 'COMPLETED')
                and b.ended_at <= e.ended_at
            order by b.execution_id desc
            limit 1
        ) = 'FAILED'
    )
order by e.ended_at, e.execution_id, r.rule_id
limit $2;

-- name: list_late :many
-- At most $2 executions that became late since $1, that a rule waits for and nobody was told of.
select
    r.*, e.execution_id, e.path, e.status, e.started_at, c.deadline as late_since,
    now() as seen_at
from noetl.notification_rule as r
inner join noetl.execution as e
    on e.tenant_id = r.tenant_id and e.organization_id = r.organization_id
cross join lateral (
    select e.started_at + make_interval(secs => r.longer_than_s) as deadline
) as c
where 'late' = any(r.causes)
    and r.longer_than_s > 0
    and e.status in ('PENDING', 'RUNNING', 'PAUSED')
    and c.deadline <= now()
    and c.deadline >= $1
    and c.deadline >= r.watched_from
    and e.parent_execution_id is null
    and (
        r.pattern in ('*', e.path)
        or (right(r.pattern, 2) = '/*' and starts_with(e.path, left(r.pattern, -1)))
    )
    and not exists (
        select from noetl.notification as n
        where n.execution_id = e.execution_id and n.rule_id = r.rule_id and n.cause = 'late'
    )
    and not exists (select from noetl.notification as n where n.delivered_by = e.execution_id)
order by c.deadline, e.execution_id, r.rule_id
limit $2;

-- name: list_passed :many
-- At most $2 deadlines of playbooks and steps that passed since $1, that a rule waits for and nobody
-- was told of.
select
    r.*, e.execution_id, e.path, e.status, e.started_at, e.ended_at, p.late_since, p.late_step,
    p.late_run, now() as seen_at
from noetl.notification_rule as r
inner join noetl.execution as e
    on e.tenant_id = r.tenant_id and e.organization_id = r.organization_id
cross join lateral json_array_elements(e.late) as l (mark)
cross join lateral (
    select
        (l.mark ->> 'since')::timestamptz as late_since,
        l.mark ->> 'step' as late_step,
        coalesce(l.mark ->> 'run_id', '') as late_run
) as p
where e.late is not null
    and 'late' = any(r.causes)
    and r.longer_than_s = 0
    and p.late_since >= $1
    and p.late_since >= r.watched_from
    and (
        r.pattern in ('*', e.path)
        or (right(r.pattern, 2) = '/*' and starts_with(e.path, left(r.pattern, -1)))
    )
    and not exists (
        select from noetl.notification as n
        where n.execution_id = e.execution_id
            and n.rule_id = r.rule_id
            and n.cause = 'late'
            and n.subject = p.late_run
    )
    and not exists (select from noetl.notification as n where n.delivered_by = e.execution_id)
order by p.late_since, e.execution_id, p.late_run, r.rule_id
limit $2;

-- name: list_waiting :many
-- At most $2 open approvals since $1 that a rule waits for and nobody was told of or has decided.
select
    r.*, e.execution_id, e.path, e.status as execution_status, e.started_at, c.command_id,
    c.step_name, c.status, c.wait, c.heard_at, now() as seen_at
from noetl.notification_rule as r
inner join noetl.command as c
    on c.tenant_id = r.tenant_id and c.organization_id = r.organization_id
inner join noetl.execution as e on e.execution_id = c.execution_id
cross join lateral (
    select
        c.heard_at + make_interval(secs => r.longer_than_s) as since,
        c.wait ->> 'address' as address
) as a
where 'waiting' = any(r.causes)
    and c.wait is not null
    and c.wait ->> 'mode' = 'approval'
    and c.status = 'PARKED'
    and e.ended_at is null
    and a.since between $1 and now()
    and a.since >= r.watched_from
    and (
        r.pattern in ('*', e.path)
        or (right(r.pattern, 2) = '/*' and starts_with(e.path, left(r.pattern, -1)))
    )
    and not exists (
        select from noetl.notification as n
        where n.execution_id = e.execution_id
            and n.rule_id = r.rule_id
            and n.cause = 'waiting'
            and 'approval/' || n.subject = a.address
    )
    and not exists (select from noetl.notification as n where n.delivered_by = e.execution_id)
    and not exists (
        select from noetl.inbox as i
        where i.tenant_id = c.tenant_id
            and i.organization_id = c.organization_id
            and i.address = a.address
    )
order by a.since, c.execution_id, c.command_id, r.rule_id
limit $2;

-- name: send :one
-- Keep a notification and ask for what delivers it; see the function.
select noetl.send_notification($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: list_sent :many
-- The latest $3 notifications of tenant $1 and organization $2, with what became of them.
select
    n.rule_name, n.cause, n.path, n.execution_id, n.delivered_by, n.sent_at,
    coalesce(e.status, 'PENDING') as status
from noetl.notification as n
left join noetl.execution as e on e.execution_id = n.delivered_by
where n.tenant_id = $1 and n.organization_id = $2
order by n.sent_at desc, n.execution_id desc, n.rule_id
limit $3;
