-- name: columns :many
SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default
FROM information_schema.columns
WHERE table_schema = 'public' AND table_name = ANY ($1::text[])
ORDER BY table_name, column_name;

-- name: indexes :many
SELECT tablename, indexdef FROM pg_indexes
WHERE schemaname = 'public' AND tablename = ANY ($1::text[])
ORDER BY tablename, indexdef;
