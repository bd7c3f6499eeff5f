"""What a step that writes 10,000 lines a second costs the items of another execution.

One stack with one worker runs a loop of `python` items and one of `noop` items, alone and beside
the loud step, in turn. It prints items a second of both, their ratios, and the lines that were kept.

    python -m tests.bench.loud_step
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.desk import Desk
from tests.support.stack import running_stack

ROUNDS = 3
LOUD_S = 20
LINES_A_SECOND = 10_000
ITEMS_BY_KIND = {"python": 300, "noop": 2_000}
TASK_BY_KIND = {
    "python": "{kind: python, input: {n: '{{ iter.x }}'}, code: 'result = n + 1'}",
    "noop": "{kind: noop, result: '{{ iter.x + 1 }}'}",
}
LOUD = f"""\
workflow:
  - step: loud
    tool:
      kind: shell
      cmds: |
        {sys.executable} -c '
        import time
        began = time.monotonic()
        for turn in range({LOUD_S * 100}):
            print("\\n".join("%09d " % turn + "x" * 30 for _ in range({LINES_A_SECOND // 100})), flush=True)
            time.sleep(max(0, began + (turn + 1) / 100 - time.monotonic()))
        '
"""
QUIET = """\
workflow:
  - step: each
    loop: {in: "{{ range(COUNT) | list }}", iterator: x, spec: {mode: parallel, max_in_flight: 8}}
    tool: TASK
"""


def main() -> None:
    """Measure, and print one line for each kind of items."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        settings = ("--workers", "1", "--no-s3", "--set", "WORKER_SHELL_ALLOWED=true")
        with running_stack(place / "stack", *settings) as stack:
            desk = Desk(stack, place)
            for kind in ITEMS_BY_KIND:
                _measure(desk, kind)


def _measure(desk: Desk, kind: str) -> None:
    count = ITEMS_BY_KIND[kind]
    text = QUIET.replace("COUNT", str(count)).replace("TASK", TASK_BY_KIND[kind])
    quiet, loud = desk.write(f"quiet-{kind}", text), desk.write("loud", LOUD)
    _rate(desk, quiet, count)
    alone: list[float] = []
    beside: list[float] = []
    lines = 0
    for _ in range(ROUNDS):
        alone.append(_rate(desk, quiet, count))
        began = desk.begin(loud)
        time.sleep(2)
        beside.append(_rate(desk, quiet, count))
        assert desk.status(began)["status"] == "RUNNING", "the loud step ended too early"
        desk.wait_for(began, "COMPLETED")
        (line,) = desk.type("logs", began, "-n", "1").out.splitlines()
        lines = int(line.rpartition(": ")[2].split()[0]) * (LINES_A_SECOND // 100)
    ratios = [one / other for one, other in zip(beside, alone, strict=True)]
    print(  # noqa: T201 - what the module is for
        f"{kind}: {statistics.median(alone):.0f} items/s alone, "
        f"{statistics.median(beside):.0f} beside, ratios "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}; {lines:,} lines kept"
    )


def _rate(desk: Desk, file: str, count: int) -> float:
    """Run a loop to its end; return how many items ended in a second of it."""
    execution_id = desk.begin(file)
    desk.wait_for(execution_id, "COMPLETED")
    answer = desk.get(f"/api/executions/{execution_id}/steps")
    return count / float(answer.json()["steps"][0]["duration"])


if __name__ == "__main__":
    main()
