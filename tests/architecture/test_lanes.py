"""The suite's own order: every file that it names is there, and what is left out runs alone."""

import re
from pathlib import Path

from tests.support import lanes

ROOT = Path(__file__).parents[2]


def test_every_long_file_is_there_and_named_once() -> None:
    assert len(set(lanes.LONGEST)) == len(lanes.LONGEST)
    assert [name for name in lanes.LONGEST if not (lanes.TESTS / name).is_file()] == []


def test_what_needs_the_machine_runs_by_itself_and_is_left_out_nowhere_else() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (alone,) = re.findall(r"(?m)^ALONE := (.+)$", makefile)
    assert [name for name in alone.split() if not (ROOT / name).is_file()] == []
    assert makefile.count("--ignore=") == 2
    assert "$(addprefix --ignore=,$(ALONE))" in makefile
    assert re.search(r"(?m)^\t@\$\(PYTEST\) \$\(ALONE\)$", makefile)
    (spark,) = re.findall(r"(?m)^SPARK := (.+)$", makefile)
    assert list((ROOT / spark).glob("test_*.py"))
    assert "--ignore=$(SPARK)" in makefile
    assert re.search(r"(?m)^\t@\$\(PYTEST\) \$\(PAIRS\) \$\(SPARK\)$", makefile)
    folders = {file.name for file in (ROOT / "tests").iterdir() if list(file.glob("**/test_*.py"))}
    assert "rerun" not in makefile.lower()
    groups = dict(re.findall(r"(?m)^(COMPUTING|SERVED|WHOLE) := (.+)$", makefile))
    by_hand = {"charts", "cluster", "containers", "keycloak", "observability", "upgrade"}
    assert all(f"tests/{name}\n" in makefile for name in by_hand)
    assert folders - by_hand <= {name for names in groups.values() for name in names.split()}
