-- name: setup :exec
CREATE TABLE IF NOT EXISTS public.pft_test_patient_assessments (
  pcc_patient_id bigint, facility_mapping_id bigint, page_number integer, payload jsonb NOT NULL,
  is_last_page boolean NOT NULL, execution_id text NOT NULL DEFAULT 'none', frame_id text,
  save_count integer NOT NULL DEFAULT 1, save_attempt integer NOT NULL DEFAULT 1,
  saved_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pcc_patient_id, facility_mapping_id, page_number));
CREATE TABLE IF NOT EXISTS public.pft_test_patient_conditions (
  LIKE public.pft_test_patient_assessments INCLUDING ALL);
CREATE TABLE IF NOT EXISTS public.pft_test_patient_medications (
  LIKE public.pft_test_patient_assessments INCLUDING ALL);
CREATE TABLE IF NOT EXISTS public.pft_test_patient_vital_signs (
  LIKE public.pft_test_patient_assessments INCLUDING ALL);
CREATE TABLE IF NOT EXISTS public.pft_test_patient_demographics (
  pcc_patient_id bigint, facility_mapping_id bigint, payload jsonb NOT NULL,
  fetched_at timestamptz NOT NULL DEFAULT now(), execution_id text NOT NULL DEFAULT 'none', frame_id text,
  save_count integer NOT NULL DEFAULT 1, save_attempt integer NOT NULL DEFAULT 1,
  saved_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pcc_patient_id, facility_mapping_id));
CREATE TABLE IF NOT EXISTS public.pft_test_mds_assessment_details (
  assessment_id text COLLATE "C" PRIMARY KEY, pcc_patient_id bigint, facility_mapping_id bigint,
  payload jsonb NOT NULL, fetched_at timestamptz NOT NULL DEFAULT now(),
  execution_id text NOT NULL DEFAULT 'none', frame_id text, save_count integer NOT NULL DEFAULT 1,
  save_attempt integer NOT NULL DEFAULT 1, saved_at timestamptz NOT NULL DEFAULT now());
TRUNCATE public.pft_test_patient_assessments, public.pft_test_patient_conditions,
  public.pft_test_patient_medications, public.pft_test_patient_vital_signs,
  public.pft_test_patient_demographics, public.pft_test_mds_assessment_details;
