-- Stored results and what led to them, written by projectors with the rows of their batch.

alter table noetl.result_ref
add column run_id bigint,
add column is_error boolean not null default false,
add column entered_version bigint,
-- What led to a result may have been projected before there were rows for it: a rebuild adds it.
drop constraint result_ref_parent_ref_id_fkey;

drop index noetl.result_ref_execution;
create index result_ref_step on noetl.result_ref (execution_id, step_name, ref_id desc);

comment on table noetl.result_ref is
'Results of steps that are kept by reference; derived from the ledger, rebuilt with the surfaces.';
comment on column noetl.result_ref.parent_ref_id is
'The nearest stored result that led to this one, if there is one; in the same execution.';

grant select, insert, update, delete on noetl.result_ref to noetl_projector;
grant select on noetl.result_ref to noetl_reader;
alter table noetl.result_ref enable row level security;
create policy tenant_reads on noetl.result_ref for select to noetl_reader
using (tenant_id = current_setting('app.tenant', true));
create policy services on noetl.result_ref to noetl_planner, noetl_projector, noetl_reaper
using (true) with check (true);
