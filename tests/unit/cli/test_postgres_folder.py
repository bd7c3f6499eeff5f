from pathlib import Path

import pytest

from noetl_cli.errors import StackError
from noetl_cli.stack import control
from noetl_cli.stack.home_folder import stack_secrets
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.processes import process_spec
from noetl_cli.stack.processes.process_spec import ProcessUser
from noetl_cli.stack.servers import postgres

OTHER_USER = ProcessUser(uid=65_534, gid=65_534)


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that PostgreSQL's own user cannot enter."""
    monkeypatch.setattr(postgres, "FALLBACK_ROOT", tmp_path / "elsewhere")
    monkeypatch.setattr(process_spec, "can_enter", lambda *_: False)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "home"


def test_a_cluster_that_a_deleted_home_left_is_not_met_again(closed: Path) -> None:
    left = postgres.choose_cluster_folder(closed, OTHER_USER, password="one")  # noqa: S106 - a test's
    fresh = postgres.choose_cluster_folder(closed, OTHER_USER, password="two")  # noqa: S106 - a test's
    assert fresh != left
    assert postgres.choose_cluster_folder(closed, OTHER_USER, password="one") == left  # noqa: S106 - a test's


def test_a_home_keeps_the_cluster_that_it_had(closed: Path, tmp_path: Path) -> None:
    former = tmp_path / "elsewhere" / "former" / "postgres"
    (former / "data").mkdir(parents=True)
    (former / "data" / "PG_VERSION").write_text("18")
    described = postgres.describe_postgres(home=closed, port=1, password="one", former=former)  # noqa: S106 - a test's
    assert described.directory == former


def test_a_former_folder_that_others_may_write_is_refused(closed: Path) -> None:
    made = postgres.choose_cluster_folder(closed, OTHER_USER, password="one")  # noqa: S106 - a test's
    (made / "data").mkdir(parents=True)
    (made / "data" / "PG_VERSION").write_text("18")
    made.parent.chmod(0o777)
    with pytest.raises(StackError, match="belongs to somebody else"):
        postgres.describe_postgres(home=closed, port=1, password="one", former=made)  # noqa: S106 - a test's


def test_only_a_folder_made_for_a_cluster_is_deleted_with_it(closed: Path) -> None:
    made = postgres.choose_cluster_folder(closed, OTHER_USER, password="one")  # noqa: S106 - a test's
    assert postgres.find_folder_outside(closed, made) == made.parent
    assert postgres.find_folder_outside(closed, closed / "postgres") is None
    assert postgres.find_folder_outside(closed, Path("/etc/postgres")) is None


def test_the_folder_of_a_start_that_failed_early_is_deleted_too(closed: Path) -> None:
    home = StackHome(root=closed)
    closed.mkdir()
    password = stack_secrets.load_or_make_keyring(home).postgres_superuser
    made = postgres.choose_cluster_folder(closed, OTHER_USER, password=password).parent
    other = postgres.choose_cluster_folder(closed, OTHER_USER, password="other").parent  # noqa: S106 - a test's
    control.purge_data(home)
    assert not made.exists()
    assert other.exists()
