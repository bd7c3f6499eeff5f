-- A command that was begun is not sent again: a broker that has lost its memory of messages would
-- hand it to a worker once more, long after its step has ended.

create or replace function noetl.claim_outbox(
    claim_owner text, lease_s double precision, rows_max integer
) returns setof noetl.outbox
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_xact_lock(hashtext('noetl.claim_outbox'));
    -- Those alone that were on their way already; what the read models do not show is sent.
    delete from noetl.outbox as o
    using noetl.command as c
    where o.leased_until <= now()
        and o.message_id ~ '^command/[0-9]{1,19}/[0-9]{1,9}$'
        and c.execution_id = o.execution_id
        and c.command_id = split_part(o.message_id, '/', 2)::bigint
        and (c.status <> 'ISSUED' or c.attempts > split_part(o.message_id, '/', 3)::integer);
    return query
    with free as (
        select o.outbox_id
        from noetl.outbox as o
        where (o.leased_until is null or o.leased_until <= now())
            and not exists (
                select from noetl.outbox as earlier
                where earlier.execution_id = o.execution_id
                    and earlier.outbox_id < o.outbox_id
                    and earlier.leased_until > now()
            )
        order by o.outbox_id
        limit rows_max
        for update of o skip locked
    ),
    claimed as (
        update noetl.outbox as o
        set lease_owner = claim_owner, leased_until = now() + make_interval(secs => lease_s)
        from free
        where o.outbox_id = free.outbox_id
        returning o.*
    )
    select * from claimed as c order by c.outbox_id;
end
$$;
