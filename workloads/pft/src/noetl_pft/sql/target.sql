-- name: runs :many
SELECT execution_id, run_nonce, variant, facilities, patients FROM public.pft_test_run;

-- name: assessments :many
SELECT pcc_patient_id AS patient, facility_mapping_id AS facility, page_number::text AS item, payload::text AS payload,
       is_last_page, execution_id, frame_id, save_count, save_attempt, saved_at
FROM public.pft_test_patient_assessments;

-- name: conditions :many
SELECT pcc_patient_id AS patient, facility_mapping_id AS facility, page_number::text AS item, payload::text AS payload,
       is_last_page, execution_id, frame_id, save_count, save_attempt, saved_at
FROM public.pft_test_patient_conditions;

-- name: medications :many
SELECT pcc_patient_id AS patient, facility_mapping_id AS facility, page_number::text AS item, payload::text AS payload,
       is_last_page, execution_id, frame_id, save_count, save_attempt, saved_at
FROM public.pft_test_patient_medications;

-- name: vital_signs :many
SELECT pcc_patient_id AS patient, facility_mapping_id AS facility, page_number::text AS item, payload::text AS payload,
       is_last_page, execution_id, frame_id, save_count, save_attempt, saved_at
FROM public.pft_test_patient_vital_signs;

-- name: demographics :many
SELECT pcc_patient_id AS patient, facility_mapping_id AS facility, '' AS item, payload::text AS payload,
       NULL::boolean AS is_last_page, execution_id, frame_id, save_count, save_attempt, saved_at
FROM public.pft_test_patient_demographics;

-- name: mds :many
SELECT pcc_patient_id AS patient, facility_mapping_id AS facility, assessment_id AS item, payload::text AS payload,
       NULL::boolean AS is_last_page, execution_id, frame_id, save_count, save_attempt, saved_at
FROM public.pft_test_mds_assessment_details;

-- name: queue :many
SELECT data_type AS kind, patient_id AS patient, '' AS item, facility_mapping_id AS facility, status, execution_id,
       frame_id, created_at
FROM public.pft_test_patient_work_queue;

-- name: mds_work :many
SELECT 'mds' AS kind, pcc_patient_id AS patient, assessment_id AS item, facility_mapping_id AS facility, status,
       execution_id, frame_id, NULL::timestamptz AS created_at
FROM public.pft_test_mds_assessment_ids_work;

-- name: page_work :many
SELECT kind, patient_id AS patient, item, facility_mapping_id AS facility, status, execution_id, frame_id,
       created_at
FROM public.pft_test_page_work;

-- name: validation :many
SELECT execution_id, facility_mapping_id AS facility, assessments_done, conditions_done, medications_done,
       vital_signs_done, demographics_done, assessments_queue_done, mds_expected, mds_details_done, total_expected
FROM public.pft_test_validation_log;

-- name: done_facts :many
SELECT execution_id, facility_mapping_id AS facility, data_type FROM public.pft_test_facility_data_type_done;

-- name: gates :many
SELECT execution_id, facility_mapping_id AS facility, stage, advanced_count FROM public.pft_test_facility_stage_gate;

-- name: facilities :many
SELECT facility_mapping_id AS facility, active FROM public.pft_test_facilities;

-- name: counts :one
SELECT (SELECT count(*) FROM public.pft_test_patient_assessments) AS assessments,
       (SELECT count(*) FROM public.pft_test_patient_conditions) AS conditions,
       (SELECT count(*) FROM public.pft_test_patient_medications) AS medications,
       (SELECT count(*) FROM public.pft_test_patient_vital_signs) AS vital_signs,
       (SELECT count(*) FROM public.pft_test_patient_demographics) AS demographics,
       (SELECT count(*) FROM public.pft_test_mds_assessment_details) AS mds;

-- name: work_counts :one
SELECT (SELECT count(*) FROM public.pft_test_patient_work_queue) AS queue,
       (SELECT count(*) FROM public.pft_test_mds_assessment_ids_work) AS mds_work,
       (SELECT count(*) FROM public.pft_test_page_work) AS page_work;
