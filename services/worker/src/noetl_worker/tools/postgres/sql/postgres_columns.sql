-- name: readable :exec
-- Let moments be written in the one form that Arrow reads, until the transaction ends.
set local timezone = 'UTC';
set local datestyle = 'ISO';
