-- Who sent messages again that had been given up, and who dropped them; the messages are JetStream's.

create table noetl.dead_letter_log (
    act_id bigint generated always as identity primary key,
    acted_at timestamptz not null default now(),
    action text not null check (action in ('requeue', 'drop')),
    sequence bigint not null,
    tenant_id text not null,
    organization_id text not null,
    stream text not null,
    consumer text not null,
    subject text not null,
    reason text not null,
    delivered integer not null,
    requeued integer not null,
    sha256 text not null,
    who text not null,
    why text,
    check (action <> 'drop' or why is not null)
);

comment on table noetl.dead_letter_log is 'Every act on a dead letter; append-only.';

create index dead_letter_log_owner on noetl.dead_letter_log (tenant_id, organization_id, act_id desc);
create index dead_letter_log_letter on noetl.dead_letter_log (sequence, act_id desc);

revoke all on noetl.dead_letter_log from public;
grant select, insert on noetl.dead_letter_log to noetl_planner;
