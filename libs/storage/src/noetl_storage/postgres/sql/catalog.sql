-- name: register :one
-- Keep a playbook as the next version of its path; see the function.
select
    catalog_id, tenant_id, organization_id, path, version, digest, source, model, diagnostics,
    created_at
from noetl.register_playbook($1, $2, $3, $4, $5, $6, $7, $8);

-- name: keep_draft :one
-- Keep a playbook as a draft of its path; see the function.
select
    catalog_id, tenant_id, organization_id, path, version, digest, source, model, diagnostics,
    created_at
from noetl.keep_draft($1, $2, $3, $4, $5, $6, $7, $8);

-- name: find :one
-- Version $4 of path $3 of tenant $1 and organization $2, the latest registered when $4 is null.
select
    catalog_id, tenant_id, organization_id, path, version, digest, source, model, diagnostics,
    created_at
from noetl.catalog
where tenant_id = $1
    and organization_id = $2
    and path = $3
    and version = coalesce($4::integer, version)
    and ($4::integer is not null or version > 0)
order by version desc
limit 1;

-- name: get :one
-- The entry $1.
select
    catalog_id, tenant_id, organization_id, path, version, digest, source, model, diagnostics,
    created_at
from noetl.catalog
where catalog_id = $1;

-- name: list_paths :many
-- The latest version of at most $3 playbooks of tenant $1 and organization $2, by path.
select distinct on (path collate "C")
    catalog_id, tenant_id, organization_id, path, version, digest, source, model, diagnostics,
    created_at
from noetl.catalog
where tenant_id = $1 and organization_id = $2 and version > 0
order by path collate "C", version desc
limit $3;
