import errno
import os
import socket
from pathlib import Path

import msgspec
import pytest

from noetl_cli import settings, terminal_output
from noetl_cli.errors import ExitCode, StackError
from noetl_cli.stack.home_folder import home, options, stack_secrets, state
from noetl_cli.stack.home_folder.options import StackOptions
from noetl_cli.stack.processes import loopback
from noetl_cli.stack.supervision import service_addresses, supervisor
from noetl_cli.stack.supervision.service_addresses import ServiceAddresses

ROOT = Path(__file__).parents[3]
WIRES = ServiceAddresses(
    admin_dsn="postgresql://postgres:top@127.0.0.1:1/postgres",
    database="noetl",
    password_by_role={
        f"noetl_{s}": f"{s}-pw" for s in (*service_addresses.WITH_POSTGRES, "archivist")
    },
    nats_url_by_user={
        s.service: f"nats://{s.service}" for s in service_addresses.list_instances(StackOptions())
    },
    payload_url="s3://noetl",
    payload_access_key="ak",
    payload_secret_key="sk",  # noqa: S106 - opens nothing
    secret_key="seal",  # noqa: S106 - opens nothing
    owner_digest="",
)


def environ_of(stack_options: StackOptions, name: str) -> dict[str, str]:
    chosen = dict.fromkeys(service_addresses.list_port_names(stack_options), 1)
    specs = service_addresses.build_service_specs(
        stack_options, wires=WIRES, ports=chosen, environ={}, directory=Path("/")
    )
    return next(spec.environ for spec in specs if spec.name == name)


def test_a_former_port_is_taken_again_when_it_is_free() -> None:
    first = loopback.choose_ports(["a", "b"], before={})
    assert loopback.choose_ports(["a", "b"], before=first) == first


def test_a_former_port_that_is_taken_is_replaced() -> None:
    former = loopback.choose_ports(["a"], before={})
    with socket.socket() as other:
        other.bind(("127.0.0.1", former["a"]))
        other.listen()
        assert loopback.choose_ports(["a"], before=former)["a"] != former["a"]


def test_a_held_port_is_chosen_by_nobody_else_and_may_be_listened_on() -> None:
    held, others = loopback.HeldPorts(), loopback.HeldPorts()
    (port,) = loopback.choose_ports(["a"], before={}, held=held).values()
    assert not others.hold_port(port)
    assert loopback.is_port_free(port)
    with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
        assert not others.hold_port(port)
    held.close()


def test_a_port_that_nobody_holds_any_more_can_be_held() -> None:
    held, others = loopback.HeldPorts(), loopback.HeldPorts()
    (port,) = loopback.choose_ports(["a"], before={}, held=held).values()
    held.close()
    assert others.hold_port(port)
    others.close()


def test_chosen_ports_are_outside_the_range_of_outgoing_connections() -> None:
    assert all(port < 32_768 for port in loopback.choose_ports("abcdefgh", before={}).values())


def test_the_worker_is_not_told_where_the_ledger_is() -> None:
    told = environ_of(StackOptions(), "worker-1")
    assert not [name for name, value in told.items() if "POSTGRES" in name or "postgresql" in value]


def test_only_planner_and_worker_can_open_sealed_credentials() -> None:
    stack_options = StackOptions()
    names = {
        name
        for name in ("planner-1", "worker-1", "projector-1", "outbox-1", "reaper-1")
        if "seal" in environ_of(stack_options, name).values()
    }
    assert names == {"planner-1", "worker-1"}


def test_every_service_logs_in_with_its_own_role() -> None:
    dsn = environ_of(StackOptions(), "outbox-1")["NOETL_OUTBOX_POSTGRES_DSN"]
    assert dsn == "postgresql://noetl_outbox:outbox-pw@127.0.0.1:1/noetl"


def test_projectors_share_the_shards() -> None:
    told = environ_of(StackOptions(projectors=2), "projector-2")
    assert told["NOETL_PROJECTOR_SHARD_INDEX"] == "1"
    assert told["NOETL_PROJECTOR_SHARD_COUNT"] == "2"


def test_the_reaper_keeps_the_topology_that_was_declared() -> None:
    chosen = options.parse_settings(["PLANNER_COMMAND_LEASE_S=4"])
    told = environ_of(StackOptions(projectors=3, settings=chosen), "reaper-1")
    assert told["NOETL_REAPER_PROJECTOR_COUNT"] == "3"
    assert told["NOETL_REAPER_LEASE_S"] == "4"


def test_a_setting_of_the_user_wins() -> None:
    stack_options = StackOptions(
        settings=options.parse_settings(["WORKER_LEASE_S=5", "worker_pool=big"])
    )
    told = environ_of(stack_options, "worker-1")
    assert (told["NOETL_WORKER_LEASE_S"], told["NOETL_WORKER_POOL"]) == ("5", "big")


@pytest.mark.parametrize("pair", ["nonsense", "=5", "A B=5"])
def test_a_malformed_setting_is_a_usage_error(pair: str) -> None:
    with pytest.raises(StackError) as caught:
        options.parse_settings([pair])
    assert caught.value.exit_code is ExitCode.USAGE


def test_secrets_are_made_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    place = home.make_home(tmp_path / "stack")
    first = stack_secrets.load_or_make_keyring(place)
    assert stack_secrets.load_or_make_keyring(place) == first
    assert place.secrets_file.stat().st_mode & 0o777 == 0o600


def test_data_of_a_stack_is_its_owners_alone(tmp_path: Path) -> None:
    place = home.make_home(tmp_path / "stack")
    folders = [folder for folder in place.root.iterdir() if folder.is_dir()]
    assert {folder.name for folder in folders} >= {"files", "logs", "payloads"}
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


def test_a_damaged_secrets_file_is_never_replaced(tmp_path: Path) -> None:
    place = home.make_home(tmp_path / "stack")
    place.secrets_file.write_text("{")
    with pytest.raises(StackError, match="damaged"):
        stack_secrets.load_or_make_keyring(place)
    assert place.secrets_file.read_text() == "{"


def test_a_damaged_state_file_says_what_to_do(tmp_path: Path) -> None:
    place = home.make_home(tmp_path / "stack")
    place.state_file.write_text("[]")
    with pytest.raises(StackError) as caught:
        state.find_state(place)
    assert str(place.state_file) in caught.value.way_out


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(StackError, match="/proc/nowhere"):
        home.make_home(Path("/proc/nowhere"))


def test_only_one_supervisor_holds_a_folder(tmp_path: Path) -> None:
    place = home.make_home(tmp_path / "stack")
    assert not home.is_supervised(place)
    with home.hold_supervisor_lock(place):
        assert home.is_supervised(place)
        with pytest.raises(StackError, match="already"), home.hold_supervisor_lock(place):
            pass
    assert not home.is_supervised(place)


def test_a_grown_log_is_copied_aside_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old" * 10)
        assert supervisor.rotate_logs(tmp_path, bytes_max=10) == ["a.log"]
        writer.write(b"new")
    assert log.read_bytes() == b"new"
    assert (tmp_path / "a.log.1").read_bytes() == b"old" * 10
    assert supervisor.rotate_logs(tmp_path, bytes_max=10) == []


def test_a_grown_log_is_emptied_where_there_is_no_room_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_source: Path, copy: Path) -> None:
        copy.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(supervisor.shutil, "copyfile", full)
    (tmp_path / "a.log").write_bytes(b"old" * 10)
    assert supervisor.rotate_logs(tmp_path, bytes_max=10) == ["a.log"]
    assert [item.name for item in tmp_path.iterdir()] == ["a.log"]
    assert (tmp_path / "a.log").read_bytes() == b""


def test_the_folder_comes_from_the_argument_then_the_environment() -> None:
    environ = {"NOETL_HOME": "/a", "XDG_STATE_HOME": "/b", "HOME": "/c"}
    assert settings.choose_home(Path("/z"), environ=environ) == Path("/z")
    assert settings.choose_home(None, environ=environ) == Path("/a")
    del environ["NOETL_HOME"]
    assert settings.choose_home(None, environ=environ) == Path("/b/noetl")
    del environ["XDG_STATE_HOME"]
    assert settings.choose_home(None, environ=environ) == Path("/c/.local/state/noetl")


def test_control_characters_in_data_are_shown() -> None:
    assert terminal_output.escape_controls("a\x1b[2Jb\tc") == "a\\x1b[2Jb\tc"


def test_the_deployed_permissions_are_those_of_the_embedded_stack() -> None:
    deployed = (ROOT / "deploy/nats/permissions.conf").read_bytes()
    embedded = ROOT / "cli/src/noetl_cli/stack/nats_permissions.conf"
    assert deployed == embedded.read_bytes()


def test_workers_of_another_pool_are_told_so_and_everyone_knows_the_pools() -> None:
    stack_options = StackOptions(pools=options.parse_pools(["gpu=2"]), http_pools=["edge"])
    assert environ_of(stack_options, "worker-1")["NOETL_WORKER_POOL"] == "default"
    assert environ_of(stack_options, "worker-gpu-2")["NOETL_WORKER_POOL"] == "gpu"
    assert environ_of(stack_options, "reaper-1")["NOETL_REAPER_POOLS"] == "default,gpu"
    told = environ_of(stack_options, "planner-1")
    assert told["NOETL_PLANNER_POOLS"] == "default,gpu"
    assert told["NOETL_PLANNER_HTTP_POOLS"] == "edge"


@pytest.mark.parametrize("pair", ["gpu", "gpu=x", "default=1", "a.b=1", "gpu=65", "=1"])
def test_a_pool_that_cannot_be_is_refused(pair: str) -> None:
    with pytest.raises(StackError) as refusal:
        options.parse_pools([pair])
    assert refusal.value.exit_code == ExitCode.USAGE


def test_a_pool_is_served_by_workers_here_or_over_http() -> None:
    with pytest.raises(StackError):
        options.check_http_pools(["gpu"], besides=["gpu=1"])
    with pytest.raises(StackError):
        options.check_http_pools(["edge", "edge"], besides=[])
    assert options.check_http_pools(["edge"], besides=["gpu=1"]) == ["edge"]


def test_a_keyring_of_an_earlier_release_gets_the_users_that_are_new(tmp_path: Path) -> None:
    place = home.make_home(tmp_path / "home")
    made = stack_secrets.load_or_make_keyring(place)
    older = {user: word for user, word in made.nats_by_user.items() if user != "source"}
    place.secrets_file.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(made, nats_by_user=older))
    )
    again = stack_secrets.load_or_make_keyring(place)
    assert again.nats_by_user.keys() == made.nats_by_user.keys()
    assert stack_secrets.load_or_make_keyring(place) == again
