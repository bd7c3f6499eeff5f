-- name: stay_idle :exec
-- Keep this transaction open while others read what it sees, though it does nothing.
set local idle_in_transaction_session_timeout = 0

-- name: export_snapshot :one
-- Let other connections see the same.
select pg_export_snapshot() as snapshot
