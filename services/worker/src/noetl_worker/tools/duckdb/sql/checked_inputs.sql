-- name: read_rows :many
-- Return the rows of an input.
select * from {input};

-- name: read_keys :many
-- Return the values of one column of an input.
select {column} from {input};

-- name: narrow_input :exec
-- Show of an input the rows that meet a condition.
create temp view {input} as select * from {whole} where {condition};
