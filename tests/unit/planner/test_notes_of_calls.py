"""Notes that a worker adds to an outcome are recorded and counted; they change no status."""

from msgspec import structs
from tests.support.planning import PlannerHarness, done

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: pull
    tool: {kind: http, url: "http://x", retry: {next_call: {params: {p: 1}}, max_attempts: 2}}
"""


def test_a_note_is_recorded_and_counted_as_a_warning() -> None:
    harness = PlannerHarness(PLAYBOOK)
    harness.start()
    (command,) = harness.sent()
    harness.tell(structs.replace(done(command, {}), notes=["repeat_bound"]))
    (event,) = harness.events("call.done")
    assert event.notes == ["repeat_bound"]
    assert harness.state.warnings == 1
    assert harness.types()[-1] == "playbook.completed"
