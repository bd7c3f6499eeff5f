"""What runs on others' machines in the project's name: pinned, and with no right too many."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.y*ml"))
USES = re.compile(r"^\s*(?:- )?uses:\s*(.+?)\s*$", re.MULTILINE)
PINNED = re.compile(r"(?P<action>[A-Za-z0-9_./-]+)@(?P<commit>[0-9a-f]{40}) # v\d+\.\d+\.\d+")
SERVICES = {path.name for path in (ROOT / "services").iterdir() if path.is_dir()}
IMAGES = SERVICES | {"cli", "worker-spark"}
# Jobs that may change something, and what.
WRITERS = {("images.yaml", "publish"): {"packages", "id-token"}}

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def read(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


def workflow(name: str) -> dict[Any, Any]:
    return read(ROOT / ".github/workflows" / name)


def events(found: dict[Any, Any]) -> Any:
    # `on` is a word for true in YAML 1.1.
    return found[True]


def steps(found: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    for job in found["jobs"].values():
        yield from job["steps"]


@each_workflow
def test_an_action_is_pinned_by_its_commit(path: Path) -> None:
    written = USES.findall(path.read_text())
    assert len(written) == sum("uses" in step for step in steps(read(path)))
    assert [item for item in written if not PINNED.fullmatch(item)] == []


def test_an_action_is_pinned_alike_everywhere() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for written in USES.findall(path.read_text()):
            pins.setdefault(written.partition("@")[0], set()).add(written)
    assert pins
    assert [pin for pin in pins.values() if len(pin) > 1] == []


@each_workflow
def test_a_job_may_do_what_it_says_and_no_more(path: Path) -> None:
    found = read(path)
    assert found["permissions"] == {}
    for name, job in found["jobs"].items():
        allowed = job["permissions"]
        assert set(allowed.values()) <= {"read", "write"}
        changes = {scope for scope, right in allowed.items() if right == "write"}
        assert changes == WRITERS.get((path.name, name), set()), name


@each_workflow
def test_a_checkout_leaves_no_token_behind(path: Path) -> None:
    for step in steps(read(path)):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@each_workflow
def test_nothing_from_outside_is_written_into_a_script(path: Path) -> None:
    assert [step["run"] for step in steps(read(path)) if "${{" in step.get("run", "")] == []


def test_known_holes_are_looked_for_at_every_change_and_by_the_clock() -> None:
    found = workflow("audit.yaml")
    assert {"pull_request", "schedule"} <= set(events(found))
    scripts = [step["run"] for step in steps(found) if "run" in step]
    assert "python -m pip install --require-hashes -r .github/pip-audit.txt" in scripts
    audit = next(script for script in scripts if script.startswith("pip-audit "))
    assert {"--strict", "--require-hashes", "--disable-pip"} <= set(audit.split())
    locks = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "requirements").glob("*.txt")
        if not path.name.startswith("peers-")
    }
    assert set(re.findall(r"-r (\S+)", audit)) == locks | {".github/pip-audit.txt"}


def test_the_auditor_is_pinned_with_hashes() -> None:
    text = (ROOT / ".github/pip-audit.txt").read_text()
    pins = re.findall(r"^([a-z0-9._-]+(?:\[[a-z,]+\])?)==", text, re.MULTILINE)
    assert "pip-audit" in pins
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text


def test_every_image_is_built_in_a_change_and_published_at_a_tag() -> None:
    jobs = workflow("images.yaml")["jobs"]
    assert set(jobs) == {"build", "publish"}
    for name, event in {"build": "pull_request", "publish": "push"}.items():
        assert jobs[name]["if"] == f"github.event_name == '{event}'"
        assert set(jobs[name]["strategy"]["matrix"]["service"]) == IMAGES


def test_what_is_published_says_what_is_in_it_and_is_signed() -> None:
    published = workflow("images.yaml")["jobs"]["publish"]["steps"]
    image = next(step for step in published if step.get("id") == "image")
    assert image["with"]["push"] is True
    assert image["with"]["sbom"] is True
    assert image["with"]["provenance"] == "mode=max"
    sign = published[-1]
    assert sign["run"] == 'cosign sign --yes "$IMAGE@$DIGEST"'
    assert sign["env"]["DIGEST"] == "${{ steps.image.outputs.digest }}"
    names = [step.get("uses", "").partition("@")[0] for step in published]
    assert "sigstore/cosign-installer" in names
