"""In which order files of tests are begun where two run at a time: those that take longest first.

Otherwise one of two processes would end with a long file while the other has nothing left to do.
"""

from pathlib import Path

TESTS = Path(__file__).parents[1]
# By how long they take, stacks and servers included; all others are done in less than 30 s.
LONGEST = (
    "chaos/test_pft_under_attack.py",
    "chaos/test_pipeline_under_kills.py",
    "e2e/test_pages_for_users.py",
    "acceptance/test_pft_engine.py",
    "chaos/test_partitions.py",
    "e2e/test_gallery.py",
    "integration/spark/test_spark_tool.py",
    "integration/spark/test_spark_streams.py",
    "e2e/test_killed_in_a_batch.py",
    "integration/spark/test_spark_hostile_fields.py",
    "e2e/test_generated_playbooks.py",
    "acceptance/test_language_tools.py",
    "conformance/storage/test_payloads.py",
    "acceptance/test_language_basics.py",
    "e2e/test_unreachable_servers.py",
    "e2e/test_canary_secrets.py",
    "integration/stack/test_commands.py",
    "e2e/test_files_between_steps.py",
    "e2e/test_killed_while_waiting.py",
    "conformance/messaging/test_messaging_bus.py",
    "integration/worker/test_python_environments.py",
    "e2e/test_canary_everywhere.py",
    "integration/worker/test_hostile_rendering.py",
    "integration/spark/test_exact_types_spark.py",
    "chaos/test_full_disks.py",
    "chaos/test_failpoint_sweep.py",
    "integration/worker/test_postgres.py",
    "integration/worker/test_python.py",
    "integration/worker/test_postgres_values.py",
    "unit/playbook/test_hostile_documents.py",
    "acceptance/test_pft_verifier.py",
    "integration/worker/test_duckdb.py",
    "integration/stack/test_pid_file.py",
    "chaos/test_offers_to_killed_workers.py",
    "acceptance/test_pft_verifier_variants.py",
    "integration/worker/test_exact_types.py",
    "integration/worker/test_hostile_fields.py",
    "security/workers/test_own_database.py",
    "integration/storage/test_retention.py",
    "integration/spark/test_spark_waves.py",
    "e2e/test_failed_items_of_a_thousand.py",
    "property/test_hostile_places.py",
)
_TURNS = {TESTS / name: turn for turn, name in enumerate(LONGEST)}


def turn(file: Path) -> int:
    """Give a file's place in line; files in the same place keep their order."""
    return _TURNS.get(file, len(LONGEST))
