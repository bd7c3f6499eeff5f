"""`noetl replay` and `noetl audit` against a planner's API."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support import storage
from tests.support.api import beginning, ending
from tests.support.builders import a_cursor_loop
from tests.support.running_api import Noetl, RunningApi

from noetl_contracts import codec
from noetl_contracts.credentials import TEXT_PREFIX
from noetl_contracts.events.execution_events import CtxPatched
from noetl_contracts.ids import ExecutionId

PLACE = ("--tenant", storage.TENANT, "--organization", storage.ORGANIZATION)


@pytest.fixture
def execution_id(running_api: RunningApi) -> ExecutionId:
    """An execution that has ended and is projected."""
    execution = storage.an_execution()
    running_api.append(execution, [envelope.event for envelope in a_cursor_loop().envelopes])
    running_api.call(running_api.world.project, execution)
    return execution


def history(running_api: RunningApi, execution_id: ExecutionId) -> list[Any]:
    return running_api.world.store.history_by_execution[execution_id]


def test_states_are_shown_and_compared(noetl: Noetl, execution_id: ExecutionId) -> None:
    whole = noetl("replay", "state", execution_id, *PLACE)
    assert whole.code == 0, whole.err
    assert "COMPLETED" in whole.out
    early = codec.decode_json(
        noetl("replay", "state", execution_id, "--at", "3", "--json", *PLACE).out
    )
    assert (early["version"], early["status"]) == (3, "RUNNING")
    answer = noetl("replay", "diff", execution_id, "3", "5", *PLACE)
    assert answer.out.startswith("position 3 -> position 5\n")
    assert "~ version: 3 -> 5" in answer.out
    last = str(early["head_version"])
    assert "no difference" in noetl("replay", "diff", execution_id, last, *PLACE).out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("state", "x"), "not an execution id"),
        (("state", "12"), "has no history"),
        (("state", "ID", "--at", "999"), "no position 999"),
        (("state", "ID", "--time", "noon"), "as_of_time"),
        (("check", "/nowhere"), "is no folder"),
    ],
)
def test_what_is_wrong_ends_in_one_sentence(
    noetl: Noetl, execution_id: ExecutionId, words: tuple[str, ...], sentence: str
) -> None:
    place = () if "check" in words else PLACE
    done = noetl("replay", *(execution_id if word == "ID" else word for word in words), *place)
    assert done.code == 2
    assert sentence in done.err


def test_another_tenant_is_refused_where_everybody_is_one(
    noetl: Noetl, execution_id: ExecutionId
) -> None:
    done = noetl("replay", "state", execution_id, "--tenant", "nobody")
    assert done.code == 1
    assert "authentication is off: everybody acts in tenant" in done.err


def test_evidence_is_written_and_checks_green_elsewhere(
    noetl: Noetl, running_api: RunningApi, tmp_path: Path
) -> None:
    execution_id = storage.an_execution()
    running_api.append(execution_id, [*beginning(), *ending()])
    running_api.call(running_api.world.project, execution_id)
    folder = tmp_path / "evidence"
    done = noetl("replay", "verify", execution_id, "--output", str(folder), *PLACE)
    assert (done.code, "agrees with every other" in done.out) == (0, True), done.out
    moved = folder.rename(tmp_path / "moved")
    assert noetl("replay", "check", str(moved)).code == 0
    (moved / "link").symlink_to(moved / "replay.json")
    assert "file_extra" in noetl("replay", "check", str(moved)).out


def test_evidence_of_payloads_that_are_gone_says_so(
    noetl: Noetl, execution_id: ExecutionId, tmp_path: Path
) -> None:
    folder = tmp_path / "evidence"
    done = noetl("replay", "verify", execution_id, "--output", str(folder), *PLACE)
    # The story refers to payloads that nobody has stored.
    assert (done.code, "payload_unresolved" in done.out) == (1, True)
    moved = folder.rename(tmp_path / "moved")
    again = noetl("replay", "check", str(moved), "--json")
    answer = codec.decode_json(again.out)
    kinds = {problem["code"] for problem in answer["problems"]}
    assert kinds == {"payload_unresolved", "step_failed"}
    twice = noetl("replay", "verify", execution_id, "--output", str(moved), *PLACE)
    assert (twice.code, "is not empty" in twice.err) == (2, True)


def test_evidence_of_rows_that_were_changed_says_which(
    noetl: Noetl, running_api: RunningApi, execution_id: ExecutionId, tmp_path: Path
) -> None:
    rows = running_api.world.store.row_by_key_by_surface["execution"]
    rows[execution_id, execution_id]["rows"] = 4711
    folder = tmp_path / "evidence"
    done = noetl("replay", "verify", execution_id, "--output", str(folder), *PLACE)
    assert done.code == 1
    assert f"execution.{execution_id}.rows is 4711" in done.out


def test_an_audit_names_what_was_done(
    noetl: Noetl, running_api: RunningApi, execution_id: ExecutionId, tmp_path: Path
) -> None:
    heads = tmp_path / "heads.json"
    assert noetl("audit", "heads", "--output", str(heads), *PLACE).code == 0
    clean = noetl("audit", "verify", "--heads", str(heads), *PLACE)
    assert (clean.code, clean.out) == (0, "1 history followed, 0 not as written.\n")
    events = history(running_api, execution_id)
    events[4] = structs.replace(events[4], producer="somebody")
    changed = noetl("audit", "verify", execution_id, *PLACE)
    assert changed.code == 1
    assert f"{execution_id}: changed: event {events[4].event_id} at version 5" in changed.out


def test_an_audit_finds_histories_that_are_gone(
    noetl: Noetl, running_api: RunningApi, execution_id: ExecutionId, tmp_path: Path
) -> None:
    heads = tmp_path / "heads.json"
    noetl("audit", "heads", "--output", str(heads), *PLACE)
    running_api.world.store.history_by_execution.clear()
    running_api.world.store.head_by_execution.clear()
    gone = noetl("audit", "verify", "--heads", str(heads), *PLACE)
    assert gone.code == 1
    assert "were removed, as the exported head shows" in gone.out
    bad = tmp_path / "bad.json"
    bad.write_text("[]")
    assert "is no file of heads" in noetl("audit", "verify", "--heads", str(bad), *PLACE).err
    other = tmp_path / "other.json"
    other.write_bytes(
        codec.encode_json({**codec.decode_json(heads.read_bytes()), "tenant_id": "x"})
    )
    about = noetl("audit", "verify", "--heads", str(other), *PLACE)
    assert (about.code, "is about tenant" in about.err) == (2, True)


def test_evidence_with_sealed_values_shows_none_and_still_agrees(
    noetl: Noetl, running_api: RunningApi, tmp_path: Path
) -> None:
    sealed = f"{TEXT_PREFIX}{'ab' * 4}:{'x' * 40}"
    execution_id = storage.an_execution()
    running_api.append(execution_id, [*beginning(), CtxPatched(patch={"token": sealed}), *ending()])
    running_api.call(running_api.world.project, execution_id)
    folder = tmp_path / "evidence"
    done = noetl("replay", "verify", execution_id, "--output", str(folder), *PLACE)
    assert (done.code, "agrees with every other" in done.out) == (0, True), done.out
    written = b"".join(path.read_bytes() for path in folder.iterdir())
    assert TEXT_PREFIX.encode() not in written
    assert b'"concealed":true' in written
    # The ledger itself is proven where nothing is hidden.
    assert noetl("audit", "verify", execution_id, *PLACE).code == 0
