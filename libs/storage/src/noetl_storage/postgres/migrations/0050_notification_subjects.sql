-- Rules may wait for approvals and for deadlines of playbooks; an execution may have several of each.

alter table noetl.notification_rule drop constraint notification_rule_causes_check;
alter table noetl.notification_rule add constraint notification_rule_causes_check
check (causes <@ array['failed', 'recovered', 'late', 'waiting']);

alter table noetl.notification add column subject text not null default '';
alter table noetl.notification drop constraint notification_pkey;
alter table noetl.notification add primary key (execution_id, rule_id, cause, subject);

comment on column noetl.notification.subject is
'What of the execution it is about: the id of an approval, or of a late activation of a step.';

-- Keep a notification and ask for the execution that delivers it: both or none. Returns nothing
-- when it was sent already, its rule is gone, or its approval was decided meanwhile.
create function noetl.send_notification(
    sent_rule bigint,
    sent_about bigint,
    sent_cause text,
    sent_subject text,
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
    asked_address constant text := 'approval/' || sent_subject;
begin
    select r.name into known_name
    from noetl.notification_rule as r
    where r.rule_id = sent_rule
    for share;
    if not found then
        return null;
    end if;
    if sent_cause = 'waiting' then
        -- A decision is kept under the same lock: it comes before this, or after it.
        perform pg_advisory_xact_lock(
            hashtextextended(
                concat_ws('/', 'inbox', tenant_id, organization_id, asked_address), 0
            )
        );
        if exists (
            select from noetl.inbox as i
            where i.tenant_id = tenant_id
                and i.organization_id = organization_id
                and i.address = asked_address
        ) or not exists (
            select from noetl.command as c
            inner join noetl.execution as e on e.execution_id = c.execution_id
            where c.execution_id = sent_about
                and c.wait ->> 'address' = asked_address
                and c.status = 'PARKED'
                and e.ended_at is null
        ) then
            return null;
        end if;
    end if;
    insert into noetl.notification (
        rule_id, execution_id, cause, subject, tenant_id, organization_id, rule_name, path,
        delivered_by
    )
    values (
        sent_rule, sent_about, sent_cause, sent_subject, tenant_id, organization_id, known_name,
        sent_path, execution_id
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

revoke all on function noetl.send_notification(
    bigint, bigint, text, text, text, text, bigint, text, text, text, text, bytea, text
) from public;
grant execute on function noetl.send_notification(
    bigint, bigint, text, text, text, text, bigint, text, text, text, text, bytea, text
) to noetl_reaper;

-- What of an execution has passed a deadline of its playbook: few executions have any.
alter table noetl.execution add column late json;

create index execution_late on noetl.execution (tenant_id, organization_id) where late is not null;

-- Without seconds of its own a rule waits for what passes the deadlines of playbooks.
alter table noetl.notification_rule drop constraint notification_rule_deadline_check;
