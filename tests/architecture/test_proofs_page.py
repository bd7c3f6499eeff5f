"""The page of proofs shows what was found, and each proof is a command."""

import re
from pathlib import Path

from tests.proof import registry
from tests.proof.page import JSON_FILE, PAGE_FILE, page, read

ROOT = Path(__file__).parents[2]


def test_the_page_shows_what_was_found() -> None:
    assert PAGE_FILE.read_text() == page(read(JSON_FILE)), "python -m tests.proof --page"


def test_every_proof_has_been_run_and_has_a_target() -> None:
    # One needs files that are not ours to keep: whoever has them runs it.
    run = set(read(JSON_FILE)) | {registry.NEEDS_SPEC}
    assert run == set(registry.PROOFS)
    rule = r"(?m)^PROOFS := \$\(addprefix proof/,(.*)\)$"
    named = re.search(rule, (ROOT / "Makefile").read_text())
    assert named is not None
    assert set(named[1].split()) == set(registry.PROOFS)
