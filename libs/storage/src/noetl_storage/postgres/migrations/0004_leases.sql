-- Rights that end by themselves; the time is always the database's.

-- Lease outbox rows, one claimer at a time, so that no row overtakes an earlier one in flight.
create function noetl.claim_outbox(
    claim_owner text, lease_s double precision, rows_max integer
) returns setof noetl.outbox
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_xact_lock(hashtext('noetl.claim_outbox'));
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

-- Remove rows whose publication was acknowledged.
create function noetl.settle_outbox(settled bigint[]) returns void
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
delete from noetl.outbox as o where o.outbox_id = any(settled)
$$;

-- Give rows back that could not be published.
create function noetl.release_outbox(released bigint[]) returns void
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
update noetl.outbox as o set lease_owner = null, leased_until = null
where o.outbox_id = any(released)
$$;

-- Take free and expired shards until `shards_max` are held; return all that are held.
create function noetl.claim_shards(
    claim_owner text, lease_s double precision, shards_max integer, shard_count integer
) returns setof noetl.execution_shard
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    held integer;
begin
    insert into noetl.execution_shard (shard_id)
    select s.n
    from generate_series(0, shard_count - 1) as s (n)
    where not exists (select from noetl.execution_shard as e where e.shard_id = s.n)
    on conflict do nothing;

    select count(*) into held
    from noetl.execution_shard as s
    where s.owner_instance = claim_owner and s.leased_until > now();

    with free as (
        select f.shard_id
        from noetl.execution_shard as f
        where f.shard_id < shard_count
            and (f.leased_until is null or f.leased_until <= now())
        order by f.shard_id
        limit greatest(shards_max - held, 0)
        for update skip locked
    )
    update noetl.execution_shard as s
    set owner_instance = claim_owner,
        epoch = s.epoch + 1,
        leased_until = clock_timestamp() + make_interval(secs => lease_s),
        updated_at = now()
    from free
    where s.shard_id = free.shard_id;

    return query
    select * from noetl.execution_shard as s
    where s.owner_instance = claim_owner and s.leased_until > now()
    order by s.shard_id;
end
$$;

-- Lease or extend a node number that no other live instance holds, the longest unused one first.
create function noetl.register_instance(
    name text, service text, lease_s double precision
) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    number integer;
    until timestamptz := clock_timestamp() + make_interval(secs => lease_s);
begin
    update noetl.runtime as r
    set leased_until = until, heartbeat_at = now(), kind = service
    where r.instance = name and r.leased_until > now()
    returning r.node_number into number;
    if found then
        return number;
    end if;

    perform pg_advisory_xact_lock(hashtext('noetl.register_instance'));
    select s.n into number
    from generate_series(0, 1023) as s (n)
    left join noetl.runtime as r on r.node_number = s.n
    group by s.n
    having max(r.leased_until) is null or max(r.leased_until) <= clock_timestamp()
    order by max(r.leased_until) nulls first, s.n
    limit 1;
    if number is null then
        raise exception 'all 1024 node numbers are leased' using errcode = 'NT003';
    end if;
    insert into noetl.runtime as r (instance, kind, node_number, leased_until)
    values (name, service, number, until)
    on conflict (instance) do update
    set kind = excluded.kind,
        node_number = excluded.node_number,
        leased_until = excluded.leased_until,
        heartbeat_at = now();
    return number;
end
$$;

-- Take or extend the lease on a role.
create function noetl.lead_role(
    wanted text, claimant text, lease_s double precision
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into noetl.role_lease as l (role, owner, leased_until)
    values (wanted, claimant, now() + make_interval(secs => lease_s))
    on conflict (role) do update
    set owner = excluded.owner, leased_until = excluded.leased_until
    where l.owner = excluded.owner or l.leased_until <= clock_timestamp();
    return found;
end
$$;
