-- Lineage: run events told from the ledger, kept for their receiver; all may be told again.

create table noetl.lineage (
    execution_id bigint not null,
    version bigint not null,
    ordinal integer not null,
    tenant_id text not null,
    organization_id text not null,
    event_type text not null,
    event_time timestamptz not null,
    run_id text not null,
    job text not null,
    event json not null,
    delivered_at timestamptz,
    refusal text,
    primary key (execution_id, version, ordinal)
);

comment on table noetl.lineage is 'OpenLineage run events by the version of the event they tell of.';
comment on column noetl.lineage.refusal is 'Why the receiver will never take it; not sent again.';

create index lineage_undelivered on noetl.lineage (execution_id, version, ordinal)
where delivered_at is null and refusal is null;

create table noetl.lineage_position (
    execution_id bigint primary key,
    version bigint not null,
    lineage_version integer not null,
    state bytea not null,
    updated_at timestamptz not null default now()
) with (fillfactor = 70);

revoke all on noetl.lineage, noetl.lineage_position from public;
grant select, insert, update, delete on noetl.lineage, noetl.lineage_position to noetl_projector;
grant select on noetl.lineage to noetl_reader;

alter table noetl.lineage enable row level security;
create policy tenant_reads on noetl.lineage for select to noetl_reader
using (tenant_id = current_setting('app.tenant', true));
create policy services on noetl.lineage to noetl_projector using (true) with check (true);
