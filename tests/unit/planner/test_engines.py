"""Which lane a frame's command goes to."""

import pytest
from tests.support.planning import PlannerHarness
from tests.support.slices import frame_done

from noetl_planner.domain.decision.draft import Limits
from noetl_planner.domain.decision.spark_threshold import ENDED_MIN, LaneCores

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {items: [a, b, c, d], engine: spark}
workflow:
"""
PYTHON = '{kind: python, code: "return 1"}'
BOTH = '[{name: a, kind: python, code: "return 1"}, {name: b, kind: http, url: "http://a.b"}]'
WAITS = '{kind: http, url: "http://example.com"}'


def lanes(
    frame: str, *, mode: str = "chunked, chunk_size: 2", tool: str = PYTHON, rows_min: int = 0
) -> set[str]:
    harness = PlannerHarness(
        HEAD
        + f"""
  - step: each
    loop:
      in: "{{{{ workload['items'] }}}}"
      iterator: it
      spec: {{mode: {mode}, frame: {frame}}}
    tool: {tool}
""",
        limits=Limits(spark_rows_min=rows_min),
    )
    harness.start()
    return {command.lane for command in harness.sent()}


@pytest.mark.parametrize("mode", ["chunked, chunk_size: 2", "fanout, fanout: {partitions: 2}"])
@pytest.mark.parametrize(
    ("frame", "lane"),
    [
        ("{}", "io"),
        ("{engine: io}", "io"),
        ("{engine: auto}", "io"),
        ("{engine: spark}", "spark"),
        ('{engine: "{{ workload.engine }}"}', "spark"),
    ],
)
def test_frames_go_where_their_policy_says(mode: str, frame: str, lane: str) -> None:
    assert lanes(frame, mode=mode) == {lane}


@pytest.mark.parametrize(
    ("frame", "tool", "rows_min", "lane"),
    [
        ("{}", PYTHON, 4, "spark"),
        ("{}", PYTHON, 5, "io"),
        ("{}", WAITS, 4, "io"),
        ("{engine: io}", PYTHON, 4, "io"),
        ("{transaction: true}", PYTHON, 4, "io"),
        ("{}", BOTH, 4, "io"),
    ],
)
def test_auto_takes_spark_for_many_rows_of_bodies_that_compute(
    frame: str, tool: str, rows_min: int, lane: str
) -> None:
    assert lanes(frame, tool=tool, rows_min=rows_min) == {lane}


def test_an_unknown_engine_fails_the_step_and_names_the_known_ones() -> None:
    harness = PlannerHarness(
        HEAD
        + """
  - step: each
    loop: {in: [1], iterator: it, spec: {mode: chunked, frame: {engine: "{{ 'flink' }}"}}}
    tool: {kind: noop}
"""
    )
    harness.start()
    error = harness.events("playbook.failed")[0].error
    assert error.kind == "validation"
    assert "loop.spec.frame.engine: 'flink' is not one of auto, io, spark" in error.message


@pytest.mark.parametrize(("body", "lane"), [(PYTHON, "spark"), (WAITS, "io")])
def test_auto_moves_what_is_left_to_spark_once_the_pace_shows_that_it_pays(
    body: str, lane: str
) -> None:
    harness = PlannerHarness(
        HEAD
        + f"""
  - step: each
    loop:
      in: "{{{{ range(2000) | list }}}}"
      iterator: it
      spec: {{mode: chunked, chunk_size: 2, max_in_flight: 16, frame: {{}}}}
    tool: {body}
""",
        limits=Limits(cores=LaneCores(io=2, spark=16)),
    )
    harness.start()
    first = harness.sent()
    assert {command.lane for command in first} == {"io"}
    harness.wait(10)
    for command in first[:ENDED_MIN]:
        harness.tell(frame_done(command))
    (last,) = harness.sent()
    assert last.lane == lane
