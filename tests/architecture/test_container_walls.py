"""What each container is refused where it is deployed: root, privileges, its own file system."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / "deploy" / "helm").rglob("*.yaml")) + sorted(
    (ROOT / "deploy" / "helm").rglob("*.tpl")
)
# Every template that has containers of its own.
WITH_CONTAINERS = [
    path
    for path in TEMPLATES
    if "templates" in path.parts and re.search(r"^\s*containers:", path.read_text(), re.MULTILINE)
]
REFUSED = (
    "runAsNonRoot: true",
    "runAsUser: 10001",
    "seccompProfile: {type: RuntimeDefault}",
    "allowPrivilegeEscalation: false",
    "readOnlyRootFilesystem: true",
    'capabilities: {drop: ["ALL"]}',
)


def test_there_are_templates_with_containers() -> None:
    assert {path.name for path in WITH_CONTAINERS} >= {"_pod.tpl", "jobs.yaml"}


@pytest.mark.parametrize("wall", REFUSED)
@pytest.mark.parametrize("path", WITH_CONTAINERS, ids=lambda path: path.name)
def test_a_container_runs_behind_every_wall(path: Path, wall: str) -> None:
    text = path.read_text()
    specs = len(re.findall(r"^\s*containers:", text, re.MULTILINE))
    assert text.count(wall) == specs


@pytest.mark.parametrize(
    "loose", ["privileged: true", "hostNetwork", "hostPID", "hostPath", "add: ["]
)
def test_nothing_of_the_node_is_given(loose: str) -> None:
    assert [str(path) for path in TEMPLATES if loose in path.read_text()] == []


def test_an_image_runs_as_nobody_in_particular() -> None:
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert re.findall(r"^USER (\S+)$", dockerfile, re.MULTILINE)[-1] == "10001:10001"
