-- name: bounds :one
-- Return values of a column that cut its rows into equal shares.
select (percentile_disc(array[{fractions}]::float8[]) within group (order by source.{column}))::text[] as bounds
from {source} {sample} where source.{column} is not null
