-- name: put_binding :one
-- Keep a binding; of the same one that is there nothing changes.
with put as (
    insert into noetl.role_binding (
        binding_id, tenant_id, organization_id, subject_kind, issuer, subject, role, path_prefix,
        created_by
    )
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    on conflict do nothing
    returning *
)

select * from put
union all
select b.*
from noetl.role_binding as b
where not exists (select from put)
    and b.tenant_id = $2
    and b.organization_id = $3
    and b.subject_kind = $4
    and b.issuer = $5
    and b.subject = $6
    and b.role = $7
    and b.path_prefix = $8;

-- name: remove_binding :one
-- Remove binding $1 of tenant $2 that is of organization $3, or with $4 of all organizations.
delete from noetl.role_binding
where binding_id = $1
    and tenant_id = $2
    and (organization_id = $3 or ($4::boolean and organization_id = '*'))
returning *;

-- name: list_bindings :many
-- At most $3 bindings of tenant $1 that hold in organization $2.
select *
from noetl.role_binding
where tenant_id = $1 and organization_id in ($2, '*')
order by subject_kind collate "C", subject collate "C", role collate "C", path_prefix collate "C"
limit $3;

-- name: find_bindings :many
-- The bindings of subject $2 of kind $1, and of groups $4, that issuer $3 vouches for.
select *
from noetl.role_binding
where (
    (subject_kind = $1 and subject = $2)
    or (subject_kind = 'group' and subject = any($4::text []))
)
and issuer in ('', $3);

-- name: put_groups :exec
-- Keep groups $3 of person $2 of issuer $1 as of $4, unless later ones are kept.
insert into noetl.person_groups as p (issuer, subject, groups, seen_at)
values ($1, $2, $3, $4)
on conflict (issuer, subject) do update
set groups = excluded.groups, seen_at = excluded.seen_at
where p.seen_at <= excluded.seen_at;

-- name: find_groups :one
-- The groups of person $2 of issuer $1 that were seen last.
select
    issuer,
    subject,
    groups,
    seen_at
from noetl.person_groups
where issuer = $1 and subject = $2;

-- name: put_key :exec
-- Keep an API key.
insert into noetl.api_key (
    key_prefix, tenant_id, organization_id, account, account_kind, digest, created_by, expires_at,
    maker_kind, maker_issuer, maker_id
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: find_key :one
-- The API key with prefix $1.
select *
from noetl.api_key
where key_prefix = $1;

-- name: find_key_roles :one
-- The API key with prefix $1, and the bindings of its account that issuer $2 vouches for.
select
    k.*,
    array(
        select b
        from noetl.role_binding as b
        where b.subject_kind = k.account_kind and b.subject = k.account and b.issuer in ('', $2)
    ) as bindings
from noetl.api_key as k
where k.key_prefix = $1;

-- name: list_keys :many
-- At most $3 API keys of tenant $1 and organization $2.
select *
from noetl.api_key
where tenant_id = $1 and organization_id = $2
order by account collate "C", created_at, key_prefix collate "C"
limit $3;

-- name: revoke_key :one
-- Revoke key $1 of tenant $2 and organization $3.
update noetl.api_key
set revoked_at = now()
where key_prefix = $1 and tenant_id = $2 and organization_id = $3 and revoked_at is null
returning key_prefix;

-- name: note_key_use :exec
-- Keep that key $1 was used at $2.
update noetl.api_key
set used_at = greatest(used_at, $2)
where key_prefix = $1;

-- name: has_any_key :one
-- Whether any key opens something.
select exists (
    select from noetl.api_key
    where revoked_at is null and (expires_at is null or expires_at > now())
);

-- name: has_tenant :one
-- Whether anything is kept for tenant $1. Earlier releases recorded no administration.
select
    exists (select from noetl.administration_event where tenant_id = $1)
    or exists (select from noetl.role_binding where tenant_id = $1)
    or exists (select from noetl.tenant_quota where tenant_id = $1)
    or exists (select from noetl.catalog where tenant_id = $1)
    or exists (select from noetl.execution where tenant_id = $1);

-- name: find_other_tenant :one
-- Return a tenant other than $1 of which anything is kept. Two ranges, which an index finds.
select other.tenant_id
from (
    (select tenant_id from noetl.administration_event where tenant_id < $1 limit 1)
    union all
    (select tenant_id from noetl.administration_event where tenant_id > $1 limit 1)
    union all
    (select tenant_id from noetl.execution where tenant_id < $1 limit 1)
    union all
    (select tenant_id from noetl.execution where tenant_id > $1 limit 1)
    union all
    (select tenant_id from noetl.role_binding where tenant_id <> $1 limit 1)
    union all
    (select tenant_id from noetl.tenant_quota where tenant_id <> $1 limit 1)
    union all
    (select tenant_id from noetl.catalog where tenant_id <> $1 limit 1)
) as other
limit 1;

-- name: has_organization :one
-- Whether anything is kept for organization $2 of tenant $1.
select
    exists (
        select from noetl.administration_event where tenant_id = $1 and organization_id = $2
    )
    or exists (select from noetl.role_binding where tenant_id = $1 and organization_id = $2)
    or exists (select from noetl.catalog where tenant_id = $1 and organization_id = $2)
    or exists (select from noetl.execution where tenant_id = $1 and organization_id = $2);

-- name: put_quota :exec
-- Keep what tenant $1 may use at most, instead of what it might before.
insert into noetl.tenant_quota (
    tenant_id, running_max, calls_per_s, stored_bytes_max, is_suspended
)
values ($1, $2, $3, $4, $5)
on conflict (tenant_id) do update
set
    running_max = excluded.running_max,
    calls_per_s = excluded.calls_per_s,
    stored_bytes_max = excluded.stored_bytes_max,
    is_suspended = excluded.is_suspended,
    changed_at = now();

-- name: remove_quota :exec
-- Bound tenant $1 no more.
delete from noetl.tenant_quota
where tenant_id = $1;

-- name: find_quota :one
-- What tenant $1 may use at most.
select tenant_id, running_max, calls_per_s, stored_bytes_max, is_suspended
from noetl.tenant_quota
where tenant_id = $1;

-- name: find_stored :one
-- What tenant $1 was counted to store.
select stored_bytes, counted_at
from noetl.tenant_storage
where tenant_id = $1;

-- name: list_bounded_tenants :many
-- The tenants whose quota bounds what they store.
select tenant_id
from noetl.tenant_quota
where stored_bytes_max is not null
order by tenant_id collate "C";

-- name: put_stored :exec
-- Keep that tenant $1 stored $2 bytes at $3.
insert into noetl.tenant_storage (tenant_id, stored_bytes, counted_at)
values ($1, $2, $3)
on conflict (tenant_id) do update
set stored_bytes = excluded.stored_bytes, counted_at = excluded.counted_at;

-- name: list_usage :many
-- What tenants may use and how many of their executions have not ended: of tenant $1 or else of
-- all that have a quota, those after $2 by name, at most $3.
select
    q.tenant_id,
    q.running_max,
    q.calls_per_s,
    q.stored_bytes_max,
    q.is_suspended,
    s.stored_bytes,
    s.counted_at,
    coalesce(b.running, 0)::integer as running
from noetl.tenant_quota as q
left join noetl.tenant_storage as s on s.tenant_id = q.tenant_id
left join (
    select e.tenant_id, count(*) as running
    from noetl.execution as e
    where e.status in ('PENDING', 'RUNNING', 'PAUSED')
    group by e.tenant_id
) as b on b.tenant_id = q.tenant_id
where ($1::text is null or q.tenant_id = $1) and q.tenant_id > $2 collate "C"
order by q.tenant_id collate "C"
limit $3;

-- name: count_running :one
-- How many executions of tenant $1 have not ended, no more than $2 counted, and which of $3 are
-- not shown yet.
select
    (
        select count(*)::integer
        from (
            select from noetl.execution
            where tenant_id = $1 and status in ('PENDING', 'RUNNING', 'PAUSED')
            limit $2
        ) as begun
    ) as running,
    array(
        select asked.execution_id::text
        from unnest($3::bigint[]) as asked (execution_id)
        where not exists (
            select from noetl.execution as e where e.execution_id = asked.execution_id
        )
    ) as unshown;
