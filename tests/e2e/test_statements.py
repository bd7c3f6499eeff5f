"""Promises of the language, each by a small playbook in a system of one process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import convert
from tests.support import gallery
from tests.support.gallery import Expected, Gallery

STATEMENTS = {
    item["name"]: item
    for item in yaml.safe_load((Path(__file__).parent / "statements.yaml").read_text("utf-8"))
}
HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: statements/{name}}}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    with gallery.open_gallery(tmp_path_factory.mktemp("statements")) as found:
        yield found


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_language_keeps_its_promise(running: Gallery, name: str) -> None:
    told: dict[str, Any] = dict(STATEMENTS[name])
    text = HEAD.format(name=told.pop("name")) + told.pop("playbook")
    wanted = convert(told, Expected)
    assert running.differences(wanted, text) == []
