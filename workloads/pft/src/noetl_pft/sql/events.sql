-- name: events :many
SELECT stream_version, event_type, node_name, stage_id::text AS stage_id, frame_id::text AS frame_id,
       context->>'row_count' AS row_count, context->>'parent_frame_id' AS parent_frame_id,
       COALESCE(octet_length(result::text), 0) AS result_bytes
FROM noetl.event
WHERE execution_id = $1
ORDER BY stream_version, event_id;

-- name: event_count :one
SELECT count(*) FROM noetl.event WHERE execution_id = $1;
