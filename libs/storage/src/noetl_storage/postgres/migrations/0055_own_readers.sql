-- In a tenant's own database `noetl_reader` reads that tenant. Each tenant, `default` too, may have
-- a role of `noetl.create_tenant` beside it.

alter table noetl.tenant_role drop constraint tenant_role_tenant_id_key;
create unique index tenant_role_made on noetl.tenant_role (tenant_id)
where role_name <> 'noetl_reader';

-- `noetl tenant database` and `noetl up --only-tenant` name the tenant in the database's comment,
-- and change the row themselves from this step on.
update noetl.tenant_role as r
set tenant_id = own.tenant_id
from (
    select substring(
        shobj_description(d.oid, 'pg_database') from '^NoETL tenant: ([A-Za-z0-9_-]{1,64})$'
    ) as tenant_id
    from pg_database as d
    where d.datname = current_database()
) as own
where r.role_name = 'noetl_reader' and own.tenant_id is not null;

-- Make the role that reads a tenant, or give it another password; return its name. `verifier` is
-- what the server keeps of a password, so that no password stands in its log.
create or replace function noetl.create_tenant(tenant text, verifier text, connections integer) returns text
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
    select t.role_name into role_name from noetl.tenant_role as t
    where t.tenant_id = tenant and t.role_name <> 'noetl_reader';
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
