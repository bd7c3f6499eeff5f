"""In which order files of tests are begun where two run at a time: those that take longest first.

Otherwise one of two processes would end with a long file while the other has nothing left to do.
"""

from pathlib import Path

TESTS = Path(__file__).parents[1]
# By how long they take, stacks and servers included; all others are done in less than 30 s.
LONGEST = (
    "chaos/test_pft_under_attack.py",
    "acceptance/test_pft_engine.py",
    "acceptance/test_language_tools.py",
    "acceptance/test_language_basics.py",
    "chaos/test_partitions.py",
    "integration/stack/test_commands.py",
    "integration/spark/test_spark_hostile_fields.py",
    "integration/spark/test_spark_tool.py",
    "e2e/test_gallery.py",
    "e2e/test_canary_everywhere.py",
    "chaos/test_failpoint_sweep.py",
    "e2e/test_canary_secrets.py",
    "integration/spark/test_spark_waves.py",
)
_TURNS = {TESTS / name: turn for turn, name in enumerate(LONGEST)}


def turn(file: Path) -> int:
    """Give a file's place in line; files in the same place keep their order."""
    return _TURNS.get(file, len(LONGEST))
