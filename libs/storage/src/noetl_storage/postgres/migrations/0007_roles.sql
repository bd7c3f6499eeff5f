-- One role per service, with exactly what its work needs. No role may change an event.

do $$
declare
    missing text;
begin
    for missing in
        select r.name
        from unnest(array[
            'noetl_planner', 'noetl_projector', 'noetl_outbox', 'noetl_reaper', 'noetl_reader'
        ]) as r (name)
        where not exists (select from pg_roles as p where p.rolname = r.name)
    loop
        begin
            execute format('create role %I nologin', missing);
        exception
            -- Roles belong to the whole server: another database's migration was faster.
            when duplicate_object or unique_violation then null;
        end;
    end loop;
end
$$;

revoke all on schema noetl from public;
revoke all on all tables in schema noetl from public;
revoke all on all functions in schema noetl from public;

grant usage on schema noetl
to noetl_planner, noetl_projector, noetl_outbox, noetl_reaper, noetl_reader;
grant select on noetl.schema_migration
to noetl_planner, noetl_projector, noetl_outbox, noetl_reaper, noetl_reader;

-- Every service says that it lives.
grant execute on function noetl.register_instance(text, text, double precision)
to noetl_planner, noetl_projector, noetl_outbox, noetl_reaper;
grant execute on function noetl.lead_role(text, text, double precision)
to noetl_planner, noetl_projector, noetl_outbox, noetl_reaper;
grant select on noetl.runtime to noetl_planner, noetl_projector, noetl_outbox, noetl_reaper;

-- The planner appends, owns shards and registers; it reads projections for its API alone.
grant select on noetl.event, noetl.execution_head, noetl.request, noetl.execution_shard,
noetl.execution, noetl.stage, noetl.frame, noetl.command, noetl.loop, noetl.business_object,
noetl.projection_position, noetl.projection_checkpoint, noetl.catalog, noetl.credential,
noetl.schedule, noetl.checkpoint, noetl.result_ref, noetl.manifest, noetl.manifest_part
to noetl_planner;
grant select (outbox_id, execution_id, leased_until, created_at) on noetl.outbox to noetl_planner;
grant update (owner_instance, leased_until, updated_at) on noetl.execution_shard to noetl_planner;
grant select, insert, update on noetl.projection_snapshot to noetl_planner;
grant insert on noetl.credential to noetl_planner;
do $$
begin
    execute format('grant execute on function %s to noetl_planner', 'noetl.append'::regproc::oid::regprocedure);
end
$$;
grant execute on function
noetl.submit_request(text, bigint, text, text, text, text, bytea, text),
noetl.settle_outbox(bigint[]),
noetl.release_outbox(bigint[]),
noetl.claim_shards(text, double precision, integer, integer),
noetl.register_playbook(bigint, text, text, text, text, text, json, json),
noetl.shard_of(bigint, integer)
to noetl_planner;

-- The outbox moves messages and sees nothing else.
grant select on noetl.outbox to noetl_outbox;
grant execute on function
noetl.claim_outbox(text, double precision, integer),
noetl.settle_outbox(bigint[]),
noetl.release_outbox(bigint[])
to noetl_outbox;

-- Projectors alone write projections.
grant select on noetl.event, noetl.execution_head, noetl.catalog to noetl_projector;
grant select, insert, update, delete on noetl.execution, noetl.stage, noetl.frame, noetl.command,
noetl.loop, noetl.business_object, noetl.projection_position, noetl.projection_checkpoint,
noetl.projection_snapshot
to noetl_projector;
grant execute on function noetl.shard_of(bigint, integer) to noetl_projector;

-- The reaper reads widely and acts through requests.
grant select on noetl.event, noetl.execution_head, noetl.request, noetl.execution_shard,
noetl.outbox, noetl.role_lease, noetl.execution, noetl.stage, noetl.frame, noetl.command,
noetl.loop, noetl.business_object, noetl.projection_position, noetl.projection_checkpoint,
noetl.checkpoint, noetl.result_ref, noetl.manifest, noetl.manifest_part
to noetl_reaper;
grant execute on function
noetl.submit_request(text, bigint, text, text, text, text, bytea, text),
noetl.redrive_requests(double precision, integer),
noetl.ensure_partitions(integer),
noetl.shard_of(bigint, integer)
to noetl_reaper;

-- People's tools read one tenant at a time: `set app.tenant = '…'`, else they see nothing.
grant select on noetl.event, noetl.execution, noetl.stage, noetl.frame, noetl.command, noetl.loop,
noetl.business_object
to noetl_reader;
do $$
declare
    guarded text;
begin
    foreach guarded in array array[
        'event', 'execution', 'stage', 'frame', 'command', 'loop', 'business_object'
    ]
    loop
        execute format('alter table noetl.%I enable row level security', guarded);
        execute format(
            'create policy tenant_reads on noetl.%I for select to noetl_reader '
            'using (tenant_id = current_setting(''app.tenant'', true))',
            guarded
        );
        execute format(
            'create policy services on noetl.%I to noetl_planner, noetl_projector, noetl_reaper '
            'using (true) with check (true)',
            guarded
        );
    end loop;
end
$$;
