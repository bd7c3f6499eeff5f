-- name: walls :exec
-- Close to everybody what the readers of one database could trouble the others with. The server's
-- superuser runs it in the ledger's database: these functions are its own.
set client_min_messages = error;

do $$
declare
    closed text;
begin
    for closed in
        select p.oid::regprocedure::text
        from pg_proc as p
        where p.pronamespace = 'pg_catalog'::regnamespace
            and p.proname ~ '^(lo_.*|loread|lowrite|pg_(try_)?advisory_.*|pg_sleep.*|pg_logical_emit_message)$'
    loop
        execute format('revoke execute on function %s from public', closed);
    end loop;
    -- The services take turns by these locks.
    for closed in
        select p.oid::regprocedure::text
        from pg_proc as p
        where p.pronamespace = 'pg_catalog'::regnamespace
            and p.proname ~ '^pg_(try_)?advisory_'
    loop
        execute format(
            'grant execute on function %s to %s',
            closed,
            (
                -- The owner of a tenant's own database is another role than the server's.
                select string_agg(quote_ident(r.rolname), ', ')
                from pg_roles as r
                where r.rolname in (
                    'noetl_owner', 'noetl_planner', 'noetl_projector', 'noetl_outbox',
                    'noetl_reaper', 'noetl_archivist'
                )
                or r.oid = (
                    select d.datdba from pg_database as d where d.datname = current_database()
                )
            )
        );
    end loop;
end
$$;
