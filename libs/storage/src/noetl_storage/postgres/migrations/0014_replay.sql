-- What a snapshot says about itself, and snapshots of earlier positions for looking back.

alter table noetl.projection_snapshot
add column event_id bigint,
add column payload_digest text,
add column encryption json;

create table noetl.projection_past (
    execution_id bigint not null,
    version bigint not null,
    fold_version integer not null,
    upcaster_digest text not null,
    checksum text not null,
    event_id bigint,
    payload_digest text,
    encryption json,
    state bytea not null,
    created_at timestamptz not null default now(),
    primary key (execution_id, version)
);

comment on table noetl.projection_past is
'Snapshots of earlier positions, spread so that looking back folds few events; all may be lost.';

revoke all on noetl.projection_past from public;
grant select, insert, delete on noetl.projection_past to noetl_projector;
grant select on noetl.projection_past to noetl_planner;
