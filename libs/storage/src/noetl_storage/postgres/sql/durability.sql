-- name: settings :many
-- The settings that the ledger's promise rests on.
select name || '=' || setting as setting
from pg_settings
where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'data_checksums', 'server_version')
order by name;
