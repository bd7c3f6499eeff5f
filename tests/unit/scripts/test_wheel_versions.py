"""The version that wheels take from the tags of a checkout."""

import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
WHO = ("-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = SourceFileLoader("wheels", str(ROOT / "scripts/wheels"))
    spec = spec_from_loader("wheels", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    run_git(tmp_path, "init", "--quiet")
    return module


def run_git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *WHO, *arguments], cwd=folder, check=True)  # noqa: S603, S607 - our own call of git


def commit_version(folder: Path, declared: str) -> None:
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{declared}"\n')
    run_git(folder, "add", ".")
    run_git(folder, "commit", "--quiet", "--allow-empty", "--message", "x")


def test_a_tagged_commit_has_the_version_of_its_tag(wheels: ModuleType, tmp_path: Path) -> None:
    commit_version(tmp_path, "0.1.0")
    assert wheels.find_version().startswith("0.1.0.dev1+g")
    run_git(tmp_path, "tag", "v1.2.3rc1")
    assert wheels.find_version() == "1.2.3rc1"


@pytest.mark.parametrize(
    ("tagged", "declared", "base"),
    [
        ("0.9.0", "0.10.0", "0.10.0"),
        ("0.10.0", "0.9.0", "0.10.0.post1"),
        ("0.2.0", "0.2.0", "0.2.0.post1"),
        ("0.2.0rc1", "0.2.0", "0.2.0rc1.post1"),
    ],
)
def test_a_later_commit_is_a_later_version(
    wheels: ModuleType, tmp_path: Path, tagged: str, declared: str, base: str
) -> None:
    commit_version(tmp_path, declared)
    run_git(tmp_path, "tag", f"v{tagged}")
    commit_version(tmp_path, declared)
    assert wheels.find_version().startswith(f"{base}.dev1+g")
