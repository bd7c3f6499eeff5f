-- name: put :one
-- Keep a version of a credential; nothing is returned when it is taken.
insert into noetl.credential (
    tenant_id, organization_id, name, version, kind, key_id, nonce, ciphertext
)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict do nothing
returning version;

-- name: find :one
-- Version $4 of credential $3 of tenant $1 and organization $2, the latest when $4 is null.
select name, version, kind, key_id, nonce, ciphertext
from noetl.credential
where tenant_id = $1
    and organization_id = $2
    and name = $3
    and ($4::integer is null or version = $4)
order by version desc
limit 1;

-- name: list_names :many
-- The names of at most $3 credentials of tenant $1 and organization $2.
select distinct name collate "C" as name
from noetl.credential
where tenant_id = $1 and organization_id = $2
order by 1
limit $3;
