-- name: range :many
-- Return the rows of a source that one task reads.
select {columns} from {source} where {condition}

-- name: describe_table :one
-- Return what a table is like: the pages of its largest part, and whether all have pages.
with recursive tree as (
    select c.oid, c.relkind, c.relam from pg_catalog.pg_class c where c.oid = to_regclass({table})
    union all
    select c.oid, c.relkind, c.relam
    from tree
    join pg_catalog.pg_inherits i on i.inhparent = tree.oid
    join pg_catalog.pg_class c on c.oid = i.inhrelid
)
select
    n.nspname::text as schema,
    c.relname::text as name,
    c.relkind::text as kind,
    c.relrowsecurity as has_policies,
    current_setting('block_size')::int8 as page_bytes,
    pages.page_count,
    pages.has_pages
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
cross join (
    select
        max(pg_catalog.pg_relation_size(t.oid) / current_setting('block_size')::int8) as page_count,
        bool_and(t.relkind = 'p' or t.relkind in ('r', 'm') and coalesce(a.amname = 'heap', false))
            as has_pages
    from tree t
    left join pg_catalog.pg_am a on a.oid = t.relam
) as pages
where c.oid = to_regclass({table}) and c.relkind in ('r', 'p', 'v', 'm', 'f')

-- name: list_tables :many
-- Return the names that a misspelt one may have meant.
select c.relname::text as name
from pg_catalog.pg_class c
where c.relkind in ('r', 'p', 'v', 'm', 'f') and pg_catalog.pg_table_is_visible(c.oid)
    and c.relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
order by c.relname
limit 500

-- name: list_arrays :many
-- Return which of some types are arrays.
select t.oid::int8 as oid from pg_catalog.pg_type t where t.oid in ({oids}) and t.typcategory = 'A'

-- name: prepare :exec
-- Let the server find out the types of a query's parameters.
prepare noetl_read as {query}

-- name: list_parameters :one
-- Return these types.
select parameter_types::text[] as types from pg_catalog.pg_prepared_statements where name = 'noetl_read'

-- name: deallocate :exec
-- Forget the query.
deallocate noetl_read

-- name: list_functions :many
-- Return the functions of some names: those that change at each call first.
select p.proname::text as name, p.provolatile::text as volatility, p.prokind::text as kind
from pg_catalog.pg_proc p
where p.proname in ({names})
order by p.provolatile desc, p.proname

-- name: find_views :many
-- Return which of some names are views, foreign tables, or tables that show each user other rows.
select c.relname::text as name
from pg_catalog.pg_class c
where c.relname in ({names}) and (c.relkind in ('v', 'f') or c.relrowsecurity)
order by c.relname
