"""The samples of secrets and of files in the docs run as they stand there."""

import re
from pathlib import Path

import msgspec
import pytest
from tests.support.running_api import Noetl

DOCS = Path(__file__).parents[3] / "docs"


def write_sample(page: str, name: str, folder: Path) -> Path:
    """Write the sample of a page that is the playbook of this name into a file."""
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (text,) = [block for block in blocks if f"metadata: {{name: {name}," in block]
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return file


def test_secrets_of_the_environment_and_of_files_are_used(
    noetl: Noetl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/password").write_text("twelve chars")
    monkeypatch.setenv("SHOP_TOKEN", "a-token-of-the-shop")
    monkeypatch.setenv("NOETL_WORKER_SECRET_ENV", "SHOP_TOKEN")
    monkeypatch.setenv("NOETL_WORKER_SECRET_FOLDER", str(tmp_path))
    sample = write_sample("reference/secrets.md", "secrets", tmp_path)
    outcome = noetl("run", str(sample), "-r", "local", "--output", "json")
    assert outcome.code == 0, outcome
    assert msgspec.json.decode(outcome.out) == {"lengths": [19, 12]}


def test_a_file_of_this_machine_is_read(noetl: Noetl, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("name,age\nada,36\ngrace,45\n")
    sample = write_sample("reference/language/files.md", "people", tmp_path)
    given = ("--file", str(file))
    outcome = noetl("run", str(sample), "-r", "local", *given, "--output", "json")
    assert outcome.code == 0, outcome
    assert msgspec.json.decode(outcome.out)["rows"] == [{"n": 2}]
