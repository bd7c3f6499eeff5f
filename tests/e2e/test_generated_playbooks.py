"""Playbooks drawn at random give what plain Python gives: alone, and on four workers with kills."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.e2e.command_line import FRONT, TARGET, CommandLine
from tests.e2e.conftest import SETTINGS
from tests.support.generated_playbooks import Generated, generated_playbooks, plain_values
from tests.support.stack import Stack, running_stack

from noetl_contracts import codec

pytestmark = pytest.mark.timeout(900)

OPTIONS = ("--workers", "4", *SETTINGS[SETTINGS.index("--no-s3") :])
EXAMPLES = int(os.environ.get("GENERATED_PLAYBOOKS", "6"))
DRAWN = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    # Making a failing playbook smaller takes minutes, and it is short as it is.
    phases=[Phase.generate],
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with four workers and a target database."""
    with running_stack(tmp_path_factory.mktemp("generated") / "stack", *OPTIONS) as running:
        command_line = CommandLine(running, tmp_path_factory.mktemp("command_line"))
        kept = command_line.type(
            *("credential", "put", TARGET, "--type", "postgres"),
            *("--data", f"dsn={running.url('target')}"),
        )
        assert kept.code == 0, kept
        yield running


@DRAWN
@given(generated=generated_playbooks(has_postgres=False))
def test_one_process_gives_what_python_gives(
    generated: Generated, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("alone")
    file = folder / "alone.yaml"
    file.write_text(FRONT.format(name="alone") + generated.body)
    done = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "noetl_cli", "run", "-r", "local", "--json", str(file)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.defpath, "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stdout + done.stderr + generated.body
    ended = codec.decode_json(done.stdout.splitlines()[-1])
    (result,) = ended["result"]["context"]["data"]["tasks"].values()
    assert plain_values(result["raw"]["rows"]) == plain_values(generated.expected)


@DRAWN
@given(generated=generated_playbooks(has_postgres=True), event=st.integers(1, 6), data=st.data())
def test_four_workers_of_which_one_is_killed_give_what_python_gives(
    generated: Generated,
    event: int,
    data: st.DataObject,
    stack: Stack,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    command_line = CommandLine(stack, tmp_path_factory.mktemp("four"))
    execution_id = command_line.begin(command_line.write("four", generated.body))
    command_line.wait_for_event(
        execution_id, "command.started", min(event, generated.body.count("step:"))
    )
    stack.kill(data.draw(st.sampled_from(sorted(stack.names("worker")))))
    found = command_line.wait_for(execution_id, "COMPLETED")
    assert plain_values(found["variables"]["rows"]) == plain_values(generated.expected)
