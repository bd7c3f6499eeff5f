-- name: mark :one
-- Note that a task has written its rows; nothing is returned when it had done so before.
insert into {done} (task) values ($1) on conflict do nothing returning task;
