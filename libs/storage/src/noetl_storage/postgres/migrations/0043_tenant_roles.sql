-- Who reads one tenant is a role, and the policies ask which role it is: no setting opens another
-- tenant. `noetl_reader` reads the tenant `default`; `noetl.create_tenant` makes the others' roles.

do $$
begin
    if not exists (select from pg_roles where rolname = 'noetl_tenants') then
        begin
            create role noetl_tenants nologin;
        exception
            -- Roles belong to the whole server: another database's migration was faster.
            when duplicate_object or unique_violation then null;
        end;
    end if;
end
$$;

create table noetl.tenant_role (
    role_name name primary key,
    tenant_id text not null unique check (tenant_id ~ '^[A-Za-z0-9_-]{1,64}$'),
    created_at timestamptz not null default now()
);

comment on table noetl.tenant_role is 'Which tenant a role of the database reads.';

revoke all on noetl.tenant_role from public;
insert into noetl.tenant_role (role_name, tenant_id) values ('noetl_reader', 'default');

alter table noetl.tenant_role enable row level security;
create policy own_row on noetl.tenant_role for select to noetl_reader, noetl_tenants
using (role_name = current_user);
grant select on noetl.tenant_role to noetl_reader, noetl_tenants;

do $$
declare
    guarded text;
begin
    foreach guarded in array array[
        'event', 'execution', 'stage', 'frame', 'command', 'loop', 'business_object', 'lineage',
        'result_ref'
    ]
    loop
        execute format('drop policy tenant_reads on noetl.%I', guarded);
        execute format(
            'create policy tenant_reads on noetl.%I for select to noetl_reader, noetl_tenants '
            'using (tenant_id = '
            '(select t.tenant_id from noetl.tenant_role as t where t.role_name = current_user))',
            guarded
        );
        execute format('grant select on noetl.%I to noetl_tenants', guarded);
    end loop;
end
$$;
grant usage on schema noetl to noetl_tenants;
grant select on noetl.event_envelope to noetl_tenants;
grant execute on function noetl.encode_segment, noetl.locate_producer to noetl_tenants;

-- Make the role that reads a tenant, or give it another password; return its name. `verifier` is
-- what the server keeps of a password, so that no password stands in its log.
create function noetl.create_tenant(tenant text, verifier text, connections integer) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    role_name name;
begin
    if tenant !~ '^[A-Za-z0-9_-]{1,64}$' then
        raise exception 'a tenant is 1 to 64 letters, digits, ''_'' or ''-''' using errcode = '22023';
    end if;
    if verifier !~ '^SCRAM-SHA-256\$' then
        raise exception 'the password must come as a SCRAM-SHA-256 verifier' using errcode = '22023';
    end if;
    select t.role_name into role_name from noetl.tenant_role as t where t.tenant_id = tenant;
    if role_name is null then
        role_name := 'noetl_tenant_' || case
            when length(tenant) <= 50 then tenant
            else left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 32)
        end;
        if exists (select from pg_roles as r where r.rolname = role_name) then
            -- Of another database of this server, or made by hand: it may be able to do anything.
            raise exception 'the role % exists: drop it, or name the tenant differently', role_name
                using errcode = '42710';
        end if;
        execute format(
            'create role %I login nosuperuser nocreatedb nocreaterole noreplication nobypassrls',
            role_name
        );
        execute format('grant noetl_tenants to %I with inherit true, set false', role_name);
        -- Whoever owns the schema may look at, and end, what the role runs.
        execute format('grant %I to current_user with inherit true, set false', role_name);
        insert into noetl.tenant_role (role_name, tenant_id) values (role_name, tenant);
    end if;
    execute format('alter role %I password %L connection limit %s', role_name, verifier, connections);
    -- The role may set these itself: `noetl.end_long_reads` is what bounds it.
    execute format('alter role %I set statement_timeout = ''60s''', role_name);
    execute format('alter role %I set idle_in_transaction_session_timeout = ''60s''', role_name);
    execute format('alter role %I set idle_session_timeout = ''1h''', role_name);
    execute format('alter role %I set default_transaction_read_only = on', role_name);
    execute format('grant connect on database %I to %I', current_database(), role_name);
    return role_name;
end
$$;

-- Take a tenant's role away; false when it has none. What it runs ends.
create function noetl.drop_tenant(tenant text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    found_name name;
    reader_pid integer;
begin
    delete from noetl.tenant_role as t
    where t.tenant_id = tenant and t.role_name like 'noetl\_tenant\_%'
    returning t.role_name into found_name;
    if found_name is null then
        return false;
    end if;
    for reader_pid in select a.pid from pg_stat_activity as a where a.usename = found_name
    loop
        perform pg_terminate_backend(reader_pid);
    end loop;
    execute format('revoke all on database %I from %I', current_database(), found_name);
    execute format('drop role %I', found_name);
    return true;
end
$$;

-- End the sessions of tenants' roles whose statement or transaction lasts for longer than
-- `longest_s`; return how many. A role can switch its own time limits off, and not this.
create function noetl.end_long_reads(longest_s double precision) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    ended integer := 0;
    reader_pid integer;
begin
    -- First who, then their end: in one statement a session might be ended before it is looked at.
    for reader_pid in
        select a.pid
        from pg_stat_activity as a
        inner join noetl.tenant_role as t on t.role_name = a.usename
        where a.datname = current_database()
            and a.backend_type = 'client backend'
            and a.state <> 'idle'
            and least(a.xact_start, a.query_start)
            < clock_timestamp() - make_interval(secs => longest_s)
            and t.role_name like 'noetl\_tenant\_%'
    loop
        ended := ended + pg_terminate_backend(reader_pid)::integer;
    end loop;
    return ended;
end
$$;

revoke all on function
noetl.create_tenant(text, text, integer),
noetl.drop_tenant(text),
noetl.end_long_reads(double precision)
from public;
grant execute on function noetl.end_long_reads(double precision) to noetl_reaper;
