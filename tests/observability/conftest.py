"""Why a program that watches is not tried, where it cannot be."""

from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "build/watching"


def find_tool(name: str) -> Path:
    """Return a program of `make observability/tools`; skips where it was not built."""
    tool = TOOLS / name
    if not tool.exists():
        pytest.skip(f"{tool} is missing: make observability/tools builds it, and needs Go")
    return tool


@pytest.fixture(scope="session")
def promtool() -> Path:
    return find_tool("promtool")


@pytest.fixture(scope="session")
def otelcol() -> Path:
    return find_tool("otelcol")
