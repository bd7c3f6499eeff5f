-- name: own_reader :exec
-- Let the reader of a tenant's own database read that tenant; psql runs it there.
\set ON_ERROR_STOP on
-- Read by the migration that names the tenant, where that comes after this.
comment on database :"database" is :'note';
select
    format(
        'update noetl.tenant_role set tenant_id = %L where role_name = %L',
        :'tenant', 'noetl_reader'
    )
where to_regclass('noetl.tenant_role_made') is not null
\gexec
