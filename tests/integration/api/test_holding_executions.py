"""Holding, resuming and repeating executions at the command line."""

from pathlib import Path

import pytest
from tests.support.api import PLAYBOOK, beginning, ending
from tests.support.running_api import Noetl, RunningApi
from tests.support.storage import an_execution

from noetl_contracts import codec
from noetl_contracts.events.execution_events import ExecutionPaused, ExecutionResumed
from noetl_contracts.requests import facts


def asked(running_api: RunningApi) -> list[facts.Fact]:
    return [
        fact
        for message in running_api.world.store.message_by_id.values()
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
    running_api: RunningApi, noetl: Noetl, verb: str, said: str, kind: type
) -> None:
    execution = an_execution()
    running_api.append(execution, beginning())
    running_api.call(running_api.world.project, execution)
    answer = noetl(verb, execution)
    assert (answer.code, said in answer.out) == (0, True)
    (fact,) = asked(running_api)
    assert isinstance(fact, kind)
    running_api.append(execution, ending())
    running_api.call(running_api.world.project, execution)
    late = noetl(verb, execution)
    assert "already ended: COMPLETED" in late.out
    assert codec.decode_json(noetl(verb, execution, "--json").out)["accepted"] is False
    assert noetl(verb, "99").code == 2


def test_a_follower_is_told_of_holds(running_api: RunningApi, noetl: Noetl) -> None:
    execution = an_execution()
    held = [ExecutionPaused(request_id="p", reason="a look"), ExecutionResumed(request_id="r")]
    running_api.append(execution, [*beginning(), *held, *ending()])
    watched = noetl("run", "--attach", execution)
    assert watched.code == 0
    assert "paused: a look" in watched.out + watched.err
    assert "goes on" in watched.out + watched.err


def test_an_execution_is_repeated_from_a_step(
    running_api: RunningApi, noetl: Noetl, tmp_path: Path
) -> None:
    file = tmp_path / "hello.yaml"
    file.write_text(PLAYBOOK)
    assert noetl("register", str(file)).code == 0
    execution = an_execution()
    running_api.append(execution, [*beginning(), *ending()])
    running_api.call(running_api.world.project, execution)
    begun = noetl("rerun", execution, "--from", "start", "--set", "who=moon", "--detach")
    assert begun.code == 0, begun.err
    (fact,) = asked(running_api)
    assert isinstance(fact, facts.ExecutionRequested)
    assert fact.rerun is not None
    assert (fact.rerun.source.execution_id, fact.rerun.source.step) == (execution, "start")
    assert fact.workload == {"who": "moon"}
    assert begun.out.strip() in {
        item.row.execution_id for item in running_api.world.store.message_by_id.values()
    }
    without = noetl("rerun", execution, "--detach")
    assert (without.code, "--from" in without.err) == (2, True)
