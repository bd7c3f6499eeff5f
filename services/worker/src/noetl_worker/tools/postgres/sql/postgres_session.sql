-- name: limit_statements :one
-- Bound every later statement of this session.
select set_config('statement_timeout', $1, false);

-- name: roll_back :exec
-- End a transaction that a task left open.
rollback;

-- name: forget :exec
-- Forget what statements may have left on the session.
discard all;

-- name: end_backend :one
-- End the process of another session of the same user; it may have ended meanwhile.
select count(*) filter (where pg_terminate_backend(pid)) as ended
from pg_stat_activity where pid = $1 and usename = current_user;
