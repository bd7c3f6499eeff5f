-- name: read_cursor :one
-- Return the greatest cursor of what was staged, as the text of its type, and how many rows have one.
select to_json(max({value})) #>> '{{}}' as cursor, count({value}) as rows
from {staging} as source;

-- name: begin_snapshot :exec
-- Begin to read what the database is now.
begin isolation level repeatable read read only;

-- name: export_snapshot :one
-- Let other connections read the same.
select pg_export_snapshot();

-- name: end_snapshot :exec
-- End it.
rollback;
