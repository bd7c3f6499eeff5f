-- name: put :exec
-- Keep a rule; one that waits for something else than before is not told what ended before now.
insert into noetl.notification_rule as r (
    tenant_id, organization_id, name, pattern, causes, longer_than_s, playbook, actor, quiet, urgent
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
on conflict (tenant_id, organization_id, name) do update
set pattern = excluded.pattern,
    causes = excluded.causes,
    longer_than_s = excluded.longer_than_s,
    playbook = excluded.playbook,
    actor = excluded.actor,
    quiet = excluded.quiet,
    urgent = excluded.urgent,
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

-- name: has_rules :one
-- Tell whether anyone has a rule.
select exists(select from noetl.notification_rule);

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

-- name: hold :one
-- Keep a notification with what will be told of it; see the function.
select noetl.keep_notification($1, $2, $3, $4, $5, $6, $7, null, $8);

-- name: list_held :many
-- At most $1 notifications of each rule that are held, the earliest first, and how it stands: an
-- approval that was decided meanwhile is left out.
select
    r.*, n.execution_id, n.cause, n.subject, n.item, e.status as current_status,
    n.cause = 'failed' and l.status is not distinct from 'COMPLETED' as has_recovered
from noetl.notification_rule as r
cross join lateral (
    select n.*
    from noetl.notification as n
    where n.rule_id = r.rule_id
        and n.delivered_by is null
        and (
            n.cause <> 'waiting'
            or exists (
                select from noetl.command as c
                inner join noetl.execution as w on w.execution_id = c.execution_id
                where c.execution_id = n.execution_id
                    and c.wait ->> 'address' = 'approval/' || n.subject
                    and c.status = 'PARKED'
                    and w.ended_at is null
                    and not exists (
                        select from noetl.inbox as i
                        where i.tenant_id = c.tenant_id
                            and i.organization_id = c.organization_id
                            and i.address = c.wait ->> 'address'
                    )
            )
        )
    order by n.sent_at, n.execution_id, n.cause, n.subject
    limit $1
) as n
left join noetl.execution as e on e.execution_id = n.execution_id
left join lateral (
    select b.status
    from noetl.execution as b
    where b.tenant_id = r.tenant_id
        and b.organization_id = r.organization_id
        and b.path = n.path
        and b.execution_id > n.execution_id
        and b.status in ('FAILED', 'COMPLETED')
    order by b.execution_id desc
    limit 1
) as l on n.cause = 'failed'
order by r.rule_id, n.sent_at, n.execution_id, n.cause, n.subject;

-- name: send_held :one
-- Ask for what delivers notifications that were held; see the function.
select noetl.send_held_notifications($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: list_tests :many
-- Of each rule of tenant $1 and organization $2 the latest $3 tests since a rule of its name was
-- removed, with the status of what they started.
select
    r.name, t.event_time, t.actor, t.details ->> 'execution_id' as execution_id,
    e.status
from noetl.notification_rule as r
cross join lateral (
    select a.version, a.event_time, a.actor, a.details
    from noetl.administration_event as a
    where a.tenant_id = r.tenant_id
        and a.organization_id = r.organization_id
        and a.target = r.name
        and a.action = 'notification.tested'
        and a.version > coalesce((
            select max(b.version)
            from noetl.administration_event as b
            where b.tenant_id = r.tenant_id
                and b.organization_id = r.organization_id
                and b.target = r.name
                and b.action = 'notification.removed'
        ), 0)
    order by a.version desc
    limit $3
) as t
left join noetl.execution as e on e.execution_id = (t.details ->> 'execution_id')::bigint
where r.tenant_id = $1 and r.organization_id = $2
order by r.name collate "C", t.version desc;

-- name: list_sent :many
-- The latest $3 notifications of tenant $1 and organization $2, with what became of them.
select
    n.rule_name, n.cause, n.path, n.execution_id, n.delivered_by, n.sent_at,
    case
        when n.delivered_by is not null then coalesce(e.status, 'PENDING')
        when exists (select from noetl.notification_rule as r where r.rule_id = n.rule_id)
            then 'HELD'
        else 'DROPPED'
    end as status
from noetl.notification as n
left join noetl.execution as e on e.execution_id = n.delivered_by
where n.tenant_id = $1 and n.organization_id = $2
order by n.sent_at desc, n.execution_id desc, n.rule_id
limit $3;
