-- Rules that start a playbook because executions of others ended, and what they started.

create table noetl.notification_rule (
    rule_id bigint generated always as identity primary key,
    tenant_id text not null,
    organization_id text not null,
    name text not null,
    pattern text not null,
    causes text [] not null check (causes <@ array['failed', 'recovered']),
    longer_than_s double precision not null default 0 check (longer_than_s >= 0),
    playbook text not null,
    actor jsonb,
    watched_from timestamptz not null default now(),
    unique (tenant_id, organization_id, name)
);

comment on column noetl.notification_rule.watched_from is
'Executions that ended before the rule was put, or began to wait for them, are none of its business.';

create table noetl.notification (
    rule_id bigint not null,
    execution_id bigint not null,
    cause text not null,
    tenant_id text not null,
    organization_id text not null,
    rule_name text not null,
    path text not null,
    delivered_by bigint not null,
    sent_at timestamptz not null default now(),
    primary key (execution_id, rule_id, cause)
);

comment on table noetl.notification is
'Each notification once: its row and the request of what delivers it are one transaction.';

-- What delivers a notification is itself no reason for one.
create index notification_delivery on noetl.notification (delivered_by);
create index notification_sent on noetl.notification (tenant_id, organization_id, sent_at desc);

-- Executions end in about the order of their rows: a summary costs no write for an execution.
create index execution_ended on noetl.execution using brin (ended_at)
with (pages_per_range = 32, autosummarize = on);

-- Keep a notification and ask for the execution that delivers it: both or none. Returns nothing
-- when it was sent already, or its rule is gone.
create function noetl.send_notification(
    sent_rule bigint,
    sent_about bigint,
    sent_cause text,
    sent_path text,
    request_id text,
    execution_id bigint,
    tenant_id text,
    organization_id text,
    kind text,
    subject text,
    data bytea,
    idempotency_key text
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    known_name text;
begin
    select r.name into known_name
    from noetl.notification_rule as r
    where r.rule_id = sent_rule
    for share;
    if not found then
        return null;
    end if;
    insert into noetl.notification (
        rule_id, execution_id, cause, tenant_id, organization_id, rule_name, path, delivered_by
    )
    values (
        sent_rule, sent_about, sent_cause, tenant_id, organization_id, known_name, sent_path,
        execution_id
    )
    on conflict do nothing;
    if not found then
        return null;
    end if;
    return noetl.submit_request(
        request_id, execution_id, tenant_id, organization_id, kind, subject, data, idempotency_key
    );
end
$$;

revoke all on noetl.notification_rule, noetl.notification from public;
revoke all on function noetl.send_notification(
    bigint, bigint, text, text, text, bigint, text, text, text, text, bytea, text
) from public;
grant execute on function noetl.send_notification(
    bigint, bigint, text, text, text, bigint, text, text, text, text, bytea, text
) to noetl_reaper;
grant select on noetl.notification_rule, noetl.notification to noetl_reaper, noetl_planner;
grant insert, update, delete on noetl.notification_rule to noetl_planner;
