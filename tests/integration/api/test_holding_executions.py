"""Holding, resuming and repeating executions at the command line."""

from pathlib import Path

import pytest
from tests.support.api import PLAYBOOK, beginning, ending
from tests.support.door import Door, Noetl
from tests.support.storage import an_execution

from noetl_contracts import codec
from noetl_contracts.events.execution_events import ExecutionPaused, ExecutionResumed
from noetl_contracts.requests import facts


def asked(door: Door) -> list[facts.Fact]:
    return [
        fact
        for message in door.world.store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
    ]


@pytest.mark.parametrize(
    ("verb", "said", "kind"),
    [
        ("pause", "is being held", facts.PauseRequested),
        ("resume", "goes on", facts.ResumeRequested),
    ],
)
def test_an_execution_is_held_and_let_go(
    door: Door, noetl: Noetl, verb: str, said: str, kind: type
) -> None:
    known = an_execution()
    door.append(known, beginning())
    door.call(door.world.project, known)
    answer = noetl(verb, known)
    assert (answer.code, said in answer.out) == (0, True)
    (fact,) = asked(door)
    assert isinstance(fact, kind)
    door.append(known, ending())
    door.call(door.world.project, known)
    late = noetl(verb, known)
    assert "already ended: COMPLETED" in late.out
    assert codec.decode_json(noetl(verb, known, "--json").out)["accepted"] is False
    assert noetl(verb, "99").code == 2


def test_a_follower_is_told_of_holds(door: Door, noetl: Noetl) -> None:
    known = an_execution()
    held = [ExecutionPaused(request_id="p", reason="a look"), ExecutionResumed(request_id="r")]
    door.append(known, [*beginning(), *held, *ending()])
    watched = noetl("run", "--attach", known)
    assert watched.code == 0
    assert "paused: a look" in watched.out + watched.err
    assert "goes on" in watched.out + watched.err


def test_an_execution_is_repeated_from_a_step(door: Door, noetl: Noetl, tmp_path: Path) -> None:
    file = tmp_path / "hello.yaml"
    file.write_text(PLAYBOOK)
    assert noetl("register", str(file)).code == 0
    known = an_execution()
    door.append(known, [*beginning(), *ending()])
    door.call(door.world.project, known)
    begun = noetl("rerun", known, "--from", "start", "--set", "who=moon", "--detach")
    assert begun.code == 0, begun.err
    (fact,) = asked(door)
    assert isinstance(fact, facts.ExecutionRequested)
    assert fact.rerun is not None
    assert (fact.rerun.source.execution_id, fact.rerun.source.step) == (known, "start")
    assert fact.workload == {"who": "moon"}
    assert begun.out.strip() in {
        one.row.execution_id for one in door.world.store.message_by_id.values()
    }
    without = noetl("rerun", known, "--detach")
    assert (without.code, "--from" in without.err) == (2, True)
