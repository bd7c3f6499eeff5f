-- Rules may wait for approvals and for deadlines of playbooks; an execution may have several of each.

alter table noetl.notification_rule drop constraint notification_rule_causes_check;
alter table noetl.notification_rule add constraint notification_rule_causes_check
check (causes <@ array['failed', 'recovered', 'late', 'waiting']);

alter table noetl.notification add column subject text not null default '';
alter table noetl.notification drop constraint notification_pkey;
alter table noetl.notification add primary key (execution_id, rule_id, cause, subject);

comment on column noetl.notification.subject is
'What of the execution it is about: the id of an approval, or of a late activation of a step.';

alter table noetl.notification_rule add column quiet jsonb;
alter table noetl.notification_rule add column urgent text [] not null default '{}';

alter table noetl.notification alter column delivered_by drop not null;
alter table noetl.notification add column item jsonb;

comment on column noetl.notification.item is
'What is told of it when the quiet hours of its rule are over; nothing delivers it before.';

create index notification_held on noetl.notification (rule_id) where delivered_by is null;

-- Tell whether an approval waits, and nobody has decided. A decision is kept under the same lock:
-- it comes before this, or after the caller's transaction.
create function noetl.is_approval_open(
    asked_execution bigint, asked_tenant text, asked_organization text, asked_address text
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_xact_lock(
        hashtextextended(
            concat_ws('/', 'inbox', asked_tenant, asked_organization, asked_address), 0
        )
    );
    return exists (
        select from noetl.command as c
        inner join noetl.execution as e on e.execution_id = c.execution_id
        where c.execution_id = asked_execution
            and c.wait ->> 'address' = asked_address
            and c.status = 'PARKED'
            and e.ended_at is null
    ) and not exists (
        select from noetl.inbox as i
        where i.tenant_id = asked_tenant
            and i.organization_id = asked_organization
            and i.address = asked_address
    );
end
$$;

-- Keep a notification, delivered by an execution or held with its item. Returns false when there is
-- one already, its rule is gone, or its approval was decided meanwhile.
create function noetl.keep_notification(
    kept_rule bigint,
    kept_about bigint,
    kept_cause text,
    kept_subject text,
    kept_path text,
    kept_tenant text,
    kept_organization text,
    kept_delivery bigint,
    kept_item jsonb
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    known_name text;
begin
    select r.name into known_name
    from noetl.notification_rule as r
    where r.rule_id = kept_rule
    for share;
    if not found then
        return false;
    end if;
    if kept_cause = 'waiting' and not noetl.is_approval_open(
        kept_about, kept_tenant, kept_organization, 'approval/' || kept_subject
    ) then
        return false;
    end if;
    insert into noetl.notification (
        rule_id, execution_id, cause, subject, tenant_id, organization_id, rule_name, path,
        delivered_by, item
    )
    values (
        kept_rule, kept_about, kept_cause, kept_subject, kept_tenant, kept_organization,
        known_name, kept_path, kept_delivery, kept_item
    )
    on conflict do nothing;
    return found;
end
$$;

-- Keep a notification and ask for the execution that delivers it: both or none. Returns nothing
-- when `noetl.keep_notification` refuses it.
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
begin
    if not noetl.keep_notification(
        sent_rule, sent_about, sent_cause, sent_subject, sent_path, tenant_id, organization_id,
        execution_id, null
    ) then
        return null;
    end if;
    return noetl.submit_request(
        request_id, execution_id, tenant_id, organization_id, kind, subject, data, idempotency_key
    );
end
$$;

-- Ask for the execution that delivers notifications which a rule has held: those named, or none.
-- Returns nothing when one of them was sent already or decided, or the rule is gone.
create function noetl.send_held_notifications(
    sent_rule bigint,
    sent_about bigint [],
    sent_causes text [],
    sent_subjects text [],
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
    held_count bigint;
begin
    -- Of two that send at once the second waits here, and finds nothing held.
    perform from noetl.notification_rule as r where r.rule_id = sent_rule for update;
    if not found then
        return null;
    end if;
    select count(*) into held_count
    from noetl.notification as n
    inner join unnest(sent_about, sent_causes, sent_subjects) as s (about, cause, subject)
        on s.about = n.execution_id and s.cause = n.cause and s.subject = n.subject
    where n.rule_id = sent_rule and n.delivered_by is null;
    if held_count = 0 or held_count <> cardinality(sent_about) then
        return null;
    end if;
    if exists (
        select from unnest(sent_about, sent_causes, sent_subjects) as s (about, cause, subject)
        where s.cause = 'waiting'
            and not noetl.is_approval_open(
                s.about, tenant_id, organization_id, 'approval/' || s.subject
            )
    ) then
        return null;
    end if;
    update noetl.notification as n
    set delivered_by = execution_id,
        sent_at = now()
    from unnest(sent_about, sent_causes, sent_subjects) as s (about, cause, subject)
    where n.rule_id = sent_rule
        and s.about = n.execution_id
        and s.cause = n.cause
        and s.subject = n.subject;
    return noetl.submit_request(
        request_id, execution_id, tenant_id, organization_id, kind, subject, data, idempotency_key
    );
end
$$;

revoke all on function noetl.is_approval_open(bigint, text, text, text) from public;
revoke all on function noetl.keep_notification(
    bigint, bigint, text, text, text, text, text, bigint, jsonb
) from public;
revoke all on function noetl.send_notification(
    bigint, bigint, text, text, text, text, bigint, text, text, text, text, bytea, text
) from public;
revoke all on function noetl.send_held_notifications(
    bigint, bigint [], text [], text [], text, bigint, text, text, text, text, bytea, text
) from public;
grant execute on function noetl.keep_notification(
    bigint, bigint, text, text, text, text, text, bigint, jsonb
) to noetl_reaper;
grant execute on function noetl.send_notification(
    bigint, bigint, text, text, text, text, bigint, text, text, text, text, bytea, text
) to noetl_reaper;
grant execute on function noetl.send_held_notifications(
    bigint, bigint [], text [], text [], text, bigint, text, text, text, text, bytea, text
) to noetl_reaper;

-- What of an execution has passed a deadline of its playbook: few executions have any.
alter table noetl.execution add column late json;

create index execution_late on noetl.execution (tenant_id, organization_id) where late is not null;

-- Without seconds of its own a rule waits for what passes the deadlines of playbooks.
alter table noetl.notification_rule drop constraint notification_rule_deadline_check;
