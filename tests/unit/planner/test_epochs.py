"""A loop that is entered again: what comes late from before changes nothing."""

from tests.support.planning import PlannerHarness, done
from tests.support.slices import gathered

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: each
    loop: {in: [1, 2], iterator: i, spec: {mode: parallel}}
    tool: {kind: noop}
    set: {ctx.rounds: "{{ ctx.rounds | default(0) + 1 }}"}
    next: {arcs: [{step: each, when: "{{ ctx.rounds < 2 }}"}]}
"""


def test_a_late_report_of_an_earlier_epoch_counts_for_nothing() -> None:
    harness = PlannerHarness(PLAYBOOK)
    harness.start()
    early = harness.sent()
    harness.tell(*(done(command, "early") for command in early))
    harness.tell(gathered(harness, ["early", "early"]))
    one, two = harness.sent()
    assert {one.command_id, two.command_id}.isdisjoint(item.command_id for item in early)
    assert harness.tell(done(early[0], "late"), done(early[1], "late")) == []
    harness.tell(done(one, "again"), done(two, "again"))
    assert harness.tell(gathered(harness, ["again", "again"])).count("loop.done") == 1
    first, second = harness.events("loop.done")
    assert first.run_id != second.run_id
    assert second.stats.success == 2
