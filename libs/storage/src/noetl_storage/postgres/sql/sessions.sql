-- name: put :exec
-- Keep a new session.
insert into noetl.session (
    session_hash, issuer, subject, name, email, groups, created_at, expires_at
)
values ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: find :one
-- The session of digest $1, if it is neither revoked nor over at $2.
select
    session_hash, issuer, subject, name, email, groups, created_at, expires_at, revoked_at
from noetl.session
where session_hash = $1 and revoked_at is null and expires_at > $2;

-- name: revoke :one
-- End the session of digest $1 at $2.
update noetl.session
set revoked_at = $2
where session_hash = $1 and revoked_at is null
returning session_hash;

-- name: revoke_person :many
-- End every session of person $2 of issuer $1 at $3.
update noetl.session
set revoked_at = $3
where issuer = $1 and subject = $2 and revoked_at is null
returning session_hash;

-- name: forget :many
-- Remove at most $2 sessions that were over at $1.
delete from noetl.session
where session_hash in (
    select session_hash
    from noetl.session
    where expires_at <= $1
    order by expires_at
    limit $2
    for update skip locked
)
returning session_hash;
