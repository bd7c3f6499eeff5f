-- Epochs of whole shards, and the order of time among histories, which bounds what is compared.

drop table noetl.checkpoint;

create table noetl.checkpoint (
    shard_id integer not null,
    shard_count integer not null check (shard_count > 0),
    epoch bigint not null check (epoch > 0),
    event_type text not null default 'checkpoint.committed',
    last_event_id bigint not null,
    through_at timestamptz not null,
    set_aside bigint[] not null default '{}',
    committed_at timestamptz not null default now(),
    primary key (shard_count, shard_id, epoch)
) with (autovacuum_vacuum_scale_factor = 0.5);

comment on table noetl.checkpoint is
'Each row is an event of its shard''s own stream; of each shard the last few are kept.';
comment on column noetl.checkpoint.through_at is
'What was appended before is projected, but for the executions that are set aside.';

-- Summaries of pages: an append stays an update within its page.
create index execution_head_recent on noetl.execution_head
using brin (updated_at) with (pages_per_range = 4, autosummarize = on);

revoke all on noetl.checkpoint from public;
grant select, insert, delete on noetl.checkpoint to noetl_projector;
grant select on noetl.checkpoint to noetl_planner, noetl_reaper;
