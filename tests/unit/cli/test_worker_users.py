"""The broker's users of workers: the shared one, those of the stack, and enrolled ones."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from noetl_cli.commands.services.worker import app
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.stack.home_folder import options
from noetl_cli.stack.home_folder.options import StackOptions
from noetl_cli.stack.servers import nats
from noetl_cli.stack.supervision import service_addresses
from noetl_messaging.streams.worker_permissions import WorkerUser, render_permissions

ROOT = Path(__file__).parents[3]


def enroll(*arguments: str) -> str:
    answer = CliRunner().invoke(app, ["enroll", *arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_the_shared_workers_permissions_are_those_of_the_default_pool() -> None:
    text = (ROOT / "deploy/nats/permissions.conf").read_text()
    assert f"WORKER = {render_permissions(WorkerUser(name='worker'))}\n" in text


def test_compose_and_the_stack_build_the_same_walls() -> None:
    deployed = (ROOT / "deploy/compose/walls.sql").read_text()
    assert deployed == (ROOT / "cli/src/noetl_cli/stack/walls.sql").read_text()


def test_every_worker_of_a_stack_is_a_user() -> None:
    stack_options = StackOptions(workers=2, pools=options.parse_pools(["gpu=1"]))
    environ = {"NOETL_WORKER_TENANTS": "acme,globex=3"}
    assert service_addresses.list_worker_users(stack_options, environ) == (
        WorkerUser(name="worker-1", tenants=("acme", "globex")),
        WorkerUser(name="worker-2", tenants=("acme", "globex")),
        WorkerUser(name="worker-gpu-1", pool="gpu", tenants=("acme", "globex")),
    )


def test_an_enrolled_worker_gets_its_entry_and_its_settings() -> None:
    told = enroll("gpu-1", "--pool", "gpu", "--tenant", "acme", "--broker", "bus:4222")
    assert 'user: "gpu-1"' in told
    user = WorkerUser(name="gpu-1", pool="gpu", tenants=("acme",), only_tenants=True)
    assert render_permissions(user) in told
    assert "NOETL_WORKER_NATS_URL=nats://gpu-1:" in told
    assert (
        "NOETL_WORKER_POOL=gpu\nNOETL_WORKER_TENANTS=acme\nNOETL_WORKER_ONLY_TENANTS=true" in told
    )


def test_what_is_written_is_its_owners_to_read(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    enroll("w", "--write", str(folder))
    st_modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert st_modes == {"w.conf": 0o600, "w.env": 0o600}
    password = (folder / "w.env").read_text().partition("nats://w:")[2].partition("@")[0]
    assert f'password: "{password}"' in (folder / "w.conf").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        *([name] for name in (*nats.USERS, "a b", "a.b", ">", "", "x" * 65)),
        *(["w", "--pool", pool] for pool in ("a.b", "", "*")),
        *(["w", "--tenant", tenant] for tenant in ("a.b", "*", "a=2", "")),
        ["w", "--tenant", "a", "--tenant", "a"],
        ["w", "--tenant", "a", "--share", "b"],
    ],
)
def test_what_cannot_be_a_user_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CliError) as refusal:
        CliRunner().invoke(app, ["enroll", *arguments], catch_exceptions=False)
    assert refusal.value.exit_code == ExitCode.USAGE


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    for folder in (place, place / "below"):
        with pytest.raises(CliError, match=f"The folder {folder} cannot be made: ") as refused:
            enroll("w", "--write", str(folder))
        assert refused.value.way_out == "Choose a writable folder with --write."
