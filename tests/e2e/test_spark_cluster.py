# ruff: noqa: E501 - a playbook reads best with one task to a line
"""A playbook whose frames run on a standalone cluster, and lose nothing when an executor dies."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.desk import TARGET, Desk
from tests.support.servers import wait_until
from tests.support.spark import BRIEF, Cluster, standalone
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PATIENCE_S = 120.0
ROOT = Path(__file__).parents[2]

ROWS = 120
PLAYBOOK = """\
workflow:
  - step: start
    loop: {in: "{{ range(120) | list }}", iterator: n, spec: SPEC}
    tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "import time; time.sleep(0.1); result = n * n"}
    set: {ctx.all: "{{ start.results }}", ctx.stats: "{{ start.stats }}"}
    next: {arcs: [{step: total}]}
  - step: total
    tool: {kind: noop, result: "{{ ctx.all | sum }}"}
    set: {ctx.total: "{{ total }}"}
"""
SPEC = "{mode: chunked, chunk_size: 5, max_in_flight: 24, frame: {engine: spark}}"
SQUARES = [number * number for number in range(ROWS)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("spark")) as made:
        yield made


@pytest.fixture(scope="module")
def spark_stack(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose worker's Spark is the cluster; executors are told what the worker is told."""
    options = (
        *("--workers", "1", "--no-s3"),
        *("--set", f"WORKER_SPARK_MASTER={cluster.master}"),
        *("--set", "WORKER_SPARK_MEMORY_BYTES=536870912"),
        *("--set", "WORKER_SPARK_CONF=spark.executor.memory=512m"),
    )
    with running_stack(
        tmp_path_factory.mktemp("spark-stack") / "stack", *options, environ=BRIEF
    ) as running:
        pid = running.pid("worker-1")
        assert pid is not None
        own = psutil.Process(pid).environ()
        only_its = {"NOETL_WORKER_HEALTH_PORT", "NOETL_WORKER_INSTANCE"}
        cluster.start(
            {
                name: value
                for name, value in own.items()
                if name.startswith("NOETL_WORKER_") and name not in only_its
            }
        )
        yield running


def test_an_executor_dies_in_mid_wave_and_nothing_is_lost(
    spark_stack: Stack, cluster: Cluster, tmp_path: Path
) -> None:
    desk = Desk(spark_stack, tmp_path)
    execution_id = desk.begin(desk.write("on_spark", PLAYBOOK.replace("SPEC", SPEC)))
    wait_until(
        lambda: (
            "frame.committed" in {one["event_type"] for one in desk.events(execution_id)}
            and len(cluster.executors()) == 2
        ),
        timeout_s=PATIENCE_S,
        what="a wave is on its way",
    )
    cluster.kill_executor()
    found = desk.wait_for(execution_id, "COMPLETED")
    assert found["variables"]["all"] == SQUARES
    assert found["variables"]["total"] == sum(SQUARES)
    assert found["variables"]["stats"]["success"] == ROWS
    kinds = Counter(event["event_type"] for event in desk.events(execution_id))
    frames = ROWS // 5
    assert kinds["frame.committed"] == frames
    assert kinds["stage.closed"] == 1
    # What had ended before stayed as it was; what had not was given back, once.
    assert 0 < kinds["frame.abandoned"] < frames
    assert kinds["frame.dispatched"] == frames + kinds["frame.abandoned"]


def test_slots_run_their_frames_on_the_cluster_and_take_effect_once(
    spark_stack: Stack, tmp_path: Path
) -> None:
    desk = Desk(spark_stack, tmp_path)
    kept = desk.type(
        *("credential", "put", TARGET, "--type", "postgres"),
        *("--data", f"dsn={spark_stack.url('target')}"),
    )
    assert kept.code == 0, kept
    example = (ROOT / "examples/loop-cursor.yaml").read_text().replace("main_db", TARGET)
    policy = "frame: {max_rows: 3, engine: spark, transaction: true}"
    body = example[example.index("workflow:") :].replace("frame: {max_rows: 3}", policy)
    assert policy in body
    execution_id = desk.begin(desk.write("slots_on_spark", body))
    found = desk.wait_for(execution_id, "COMPLETED")
    assert (found["variables"]["done"], found["variables"]["claimed"]) == (15, 15)
    lanes = {
        event["context"]["lane"]
        for event in desk.events(execution_id)
        if event["event_type"] == "command.issued" and "slot" in event["context"]
    }
    assert lanes == {"spark"}
