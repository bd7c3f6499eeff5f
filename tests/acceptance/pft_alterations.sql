-- name: a_middle_page_is_gone :exec
DELETE FROM pft_test_patient_assessments WHERE ctid = (SELECT min(p.ctid) FROM pft_test_patient_assessments p
WHERE page_number = 2 AND NOT is_last_page);

-- name: a_last_page_is_gone :exec
DELETE FROM pft_test_patient_assessments WHERE pcc_patient_id = 7 AND is_last_page;

-- name: a_patient_is_gone :exec
DELETE FROM pft_test_patient_assessments WHERE pcc_patient_id = 7;
DELETE FROM pft_test_patient_conditions WHERE pcc_patient_id = 7;
DELETE FROM pft_test_patient_medications WHERE pcc_patient_id = 7;
DELETE FROM pft_test_patient_vital_signs WHERE pcc_patient_id = 7;
DELETE FROM pft_test_patient_demographics WHERE pcc_patient_id = 7;

-- name: an_assessments_page_is_gone_with_its_ids_and_details :exec
DELETE FROM pft_test_patient_assessments WHERE pcc_patient_id = 7 AND page_number = 1;
DELETE FROM pft_test_mds_assessment_ids_work WHERE assessment_id LIKE 'MDS-7-p1-%';
DELETE FROM pft_test_mds_assessment_details WHERE assessment_id LIKE 'MDS-7-p1-%';

-- name: two_payloads_are_swapped :exec
UPDATE pft_test_patient_assessments a SET payload = b.payload FROM pft_test_patient_assessments b WHERE
a.page_number = 1 AND b.page_number = 1 AND (a.pcc_patient_id, b.pcc_patient_id) IN ((3, 4), (4, 3));

-- name: a_last_page_is_not_marked :exec
UPDATE pft_test_patient_assessments SET is_last_page = false WHERE pcc_patient_id = 3;

-- name: a_patient_moved_to_another_facility :exec
UPDATE pft_test_patient_assessments SET facility_mapping_id = 2 WHERE pcc_patient_id = 3;

-- name: a_demographics_row_is_gone :exec
DELETE FROM pft_test_patient_demographics WHERE pcc_patient_id = 9;

-- name: one_answer_of_a_detail_is_another :exec
UPDATE pft_test_mds_assessment_details SET payload = jsonb_set(payload,
'{sections,1,questions,2,responses,0,responseValue}', '"9"') WHERE assessment_id = 'MDS-1-p1-0-01';

-- name: a_queue_row_is_still_claimed :exec
UPDATE pft_test_patient_work_queue SET status = 'claimed' WHERE patient_id = 3 AND data_type = 'conditions';

-- name: a_row_bears_another_execution :exec
UPDATE pft_test_patient_assessments SET execution_id = '77' WHERE pcc_patient_id = 3 AND page_number = 1;

-- name: the_run_bears_another_nonce :exec
UPDATE pft_test_run SET run_nonce = 'other';

-- name: a_unit_was_saved_twice :exec
UPDATE pft_test_patient_assessments SET save_count = 2 WHERE pcc_patient_id = 3 AND page_number = 1;

-- name: the_validation_log_counts_wrong :exec
UPDATE pft_test_validation_log SET conditions_done = conditions_done + 1;

-- name: a_gate_was_passed_twice :exec
UPDATE pft_test_facility_stage_gate SET advanced_count = 2 WHERE stage = 'mds';

-- name: an_event_is_gone :exec
DELETE FROM noetl.event WHERE stream_version = 20;

-- name: the_run_ended_twice :exec
INSERT INTO noetl.event (event_id, execution_id, stream_version, event_type) SELECT max(event_id) + 1,
min(execution_id), max(stream_version) + 1, 'playbook.failed' FROM noetl.event;

-- name: a_step_was_entered_twice :exec
UPDATE noetl.event SET event_type = 'step.enter' WHERE stream_version = (SELECT min(stream_version) FROM
noetl.event WHERE event_type = 'command.issued');

-- name: a_stage_closed_twice :exec
INSERT INTO noetl.event (event_id, execution_id, stream_version, event_type, node_name, stage_id) SELECT 1,
execution_id, (SELECT max(stream_version) + 1 FROM noetl.event), event_type, node_name, stage_id FROM
noetl.event WHERE event_type = 'stage.closed' ORDER BY event_id LIMIT 1;

-- name: a_frame_committed_after_its_stage_closed :exec
UPDATE noetl.event SET stream_version = (SELECT max(stream_version) + 1 FROM noetl.event) WHERE event_id =
(SELECT min(event_id) FROM noetl.event WHERE event_type = 'frame.committed');

-- name: a_frame_was_dispatched_again :exec
INSERT INTO noetl.event (event_id, execution_id, stream_version, event_type, frame_id, context) SELECT 1,
execution_id, 100000, event_type, frame_id, context FROM noetl.event WHERE event_type = 'frame.dispatched'
ORDER BY event_id LIMIT 1;

-- name: a_commit_counts_one_row_less :exec
UPDATE noetl.event SET context = jsonb_set(context, '{row_count}', '9') WHERE event_id = (SELECT min(event_id)
FROM noetl.event WHERE event_type = 'frame.committed');

-- name: results_are_fat :exec
UPDATE noetl.event SET result = to_jsonb(repeat('x', 3000)) WHERE result IS NOT NULL;

-- name: a_row_is_stamped_with_another_frame :exec
UPDATE pft_test_patient_work_queue a SET frame_id = b.frame_id, frame_row = 99 FROM
pft_test_patient_work_queue b WHERE a.data_type = b.data_type AND a.patient_id = 3 AND a.data_type =
'conditions' AND b.patient_id = 40;

-- name: every_table_is_empty :exec
TRUNCATE pft_test_run, pft_test_facilities, pft_test_patient_ids_work,
pft_test_patient_work_queue,pft_test_patient_assessments, pft_test_patient_conditions,
pft_test_patient_medications,pft_test_patient_vital_signs, pft_test_patient_demographics,
pft_test_mds_assessment_ids_work,pft_test_mds_assessment_details, pft_test_page_work,
pft_test_validation_log,pft_test_facility_data_type_done, pft_test_facility_stage_gate;

-- name: a_page_row_is_still_claimed :exec
UPDATE pft_test_page_work SET status = 'claimed' WHERE kind = 'conditions' AND patient_id = 3 AND item = '1';

-- name: a_page_row_is_gone :exec
DELETE FROM pft_test_page_work WHERE kind = 'assessments' AND patient_id = 3 AND item = '2';

-- name: a_page_was_enqueued_before_its_time :exec
UPDATE pft_test_page_work SET created_at = created_at - interval '1 microsecond' WHERE kind = 'assessments' AND
patient_id = 3 AND item = '2';

-- name: an_id_was_enqueued_after_its_time :exec
UPDATE pft_test_page_work SET created_at = created_at + interval '1 microsecond' WHERE kind = 'mds' AND
item = 'MDS-1-p1-0-01';

-- name: an_id_row_is_gone :exec
DELETE FROM pft_test_page_work WHERE kind = 'mds' AND item = 'MDS-1-p1-0-01';

-- name: a_page_row_has_another_frame :exec
UPDATE pft_test_page_work a SET frame_id = b.frame_id, frame_row = 99 FROM pft_test_page_work b WHERE
a.kind = b.kind AND a.kind = 'conditions' AND a.item = '1' AND b.item = '1' AND a.patient_id = 3 AND
b.patient_id = 40;
