-- name: list_who_may_connect :many
-- The roles besides superusers that may log in to this database; psql runs it.
select rolname
from pg_roles
where
    rolcanlogin
    and not rolsuper
    and has_database_privilege(rolname, current_database(), 'connect')
order by rolname;
