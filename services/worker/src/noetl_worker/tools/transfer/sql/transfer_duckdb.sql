-- name: list_columns :many
-- Return the columns of the tables of a name in the search path.
select column_name, data_type
from duckdb_columns()
where database_name = current_database() and schema_name = $1 and table_name = $2
order by column_index;

-- name: list_tables :many
-- Return the names that a misspelt one may have meant.
select table_name from duckdb_tables() where database_name = current_database() limit 500;

-- name: empty :exec
-- Remove every row, inside the transaction that writes the new ones.
delete from {table};

-- name: append :exec
-- Write a chunk of texts, each cast to the column's type.
insert into {table} ({columns}) select {values} from {chunk};

-- name: upsert :exec
-- Write a chunk; rows whose key is there already are changed.
insert into {table} ({columns}) select {values} from {chunk}
on conflict ({keys}) do update set {changes};

-- name: upsert_keys :exec
-- Write a chunk of keys alone; those that are there already stay.
insert into {table} ({columns}) select {values} from {chunk}
on conflict ({keys}) do nothing;
