-- name: begin :exec
-- Begin to read the database as it is at one moment.
begin isolation level repeatable read read only

-- name: join_snapshot :exec
-- See what the transaction saw that exported a snapshot.
set transaction snapshot '{snapshot}'

-- name: write_iso_dates :exec
-- Write dates in texts in the one form that every session reads.
set local datestyle = 'ISO'

-- name: write_utc :exec
-- Write moments in texts in UTC.
set local timezone = 'UTC'

-- name: write_intervals :exec
-- Write intervals in texts in the form of the server's default.
set local intervalstyle = 'postgres'

-- name: read_quotes :exec
-- Take a backslash in a quoted text for what it is.
set local standard_conforming_strings = on

-- name: limit_statements :exec
-- Bound every later statement of the transaction.
set local statement_timeout = {milliseconds}
