-- name: ping :one
-- The cheapest question.
select 1;

-- name: durability :one
-- The settings without which an acknowledged commit may be lost.
select
    current_setting('fsync') as fsync,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('full_page_writes') as full_page_writes;

-- name: try_lock :one
-- Take the lock of a name for this session, unless another session has it.
select pg_try_advisory_lock(hashtextextended($1, 0));

-- name: unlock :one
-- Give the lock of a name back.
select pg_advisory_unlock(hashtextextended($1, 0));
