-- name: limit_statements :one
-- Bound every later statement of this session.
select set_config('statement_timeout', $1, false);

-- name: roll_back :exec
-- End a transaction that a task left open.
rollback;

-- name: forget :exec
-- Forget what statements may have left on the session.
discard all;
