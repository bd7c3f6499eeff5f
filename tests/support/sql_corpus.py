"""The scripts of tests/corpus/sql, and the statements that they hold."""

from pathlib import Path
from typing import Any

import pytest
import yaml

_FOLDER = Path(__file__).parent.parent / "corpus" / "sql"


def read_scripts(*dialects: str) -> list[Any]:
    """Return the scripts of dialects as parameters of a test."""
    return [
        pytest.param(dialect, script, id=f"{dialect}: {script['name']}")
        for dialect in dialects
        for script in yaml.safe_load((_FOLDER / f"{dialect}.yaml").read_text())
    ]
