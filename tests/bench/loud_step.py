"""What a step that writes 10,000 lines a second costs the items of another execution.

One stack with one worker runs a loop of `python` items alone and beside the loud step, in turn. It
prints items a second of both, their ratios, and the number of the loud step's last line that was kept.

    python -m tests.bench.loud_step
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.command_line import CommandLine
from tests.support.stack import running_stack

ROUNDS = 3
LOUD_S = 20
LINES_A_SECOND = 10_000
ITEMS = 300
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
    loop: {in: "{{ range(300) | list }}", iterator: x, spec: {mode: parallel, max_in_flight: 8}}
    tool: {kind: python, input: {n: '{{ iter.x }}'}, code: 'result = n + 1'}
"""


def main() -> None:
    """Measure, and print one line."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        settings = ("--workers", "1", "--no-s3", "--set", "WORKER_SHELL_ALLOWED=true")
        with running_stack(place / "stack", *settings) as stack:
            _measure(CommandLine(stack, place))


def _measure(command_line: CommandLine) -> None:
    quiet, loud = command_line.write("quiet", QUIET), command_line.write("loud", LOUD)
    _rate(command_line, quiet)
    alone: list[float] = []
    beside: list[float] = []
    lines = 0
    for _ in range(ROUNDS):
        alone.append(_rate(command_line, quiet))
        began = command_line.begin(loud)
        time.sleep(2)
        beside.append(_rate(command_line, quiet))
        assert command_line.status(began)["status"] == "RUNNING", "the loud step ended too early"
        command_line.wait_for(began, "COMPLETED")
        (line,) = command_line.type("logs", began, "-n", "1").out.splitlines()
        lines = (int(line.rpartition(": ")[2].split()[0]) + 1) * (LINES_A_SECOND // 100)
    ratios = [item / other for item, other in zip(beside, alone, strict=True)]
    print(  # noqa: T201 - what the module is for
        f"{statistics.median(alone):.0f} items/s alone, "
        f"{statistics.median(beside):.0f} beside, ratios "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}; {lines:,} lines"
    )


def _rate(command_line: CommandLine, file: str) -> float:
    """Run a loop to its end; return how many items ended in a second of it."""
    execution_id = command_line.begin(file)
    command_line.wait_for(execution_id, "COMPLETED")
    answer = command_line.get(f"/api/executions/{execution_id}/steps")
    return ITEMS / float(answer.json()["steps"][0]["duration"])


if __name__ == "__main__":
    main()
