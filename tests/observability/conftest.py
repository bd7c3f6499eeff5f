"""Why a program that watches is not tried, where it cannot be."""

import shutil
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "build/watching"


def find_tool(name: str) -> Path:
    """Return a program of `make observability/tools`, else the machine's; skips without either."""
    built = TOOLS / name
    installed = shutil.which(name)
    if built.exists():
        return built
    if installed is None:
        pytest.skip(
            f"{name} is missing: make observability/tools builds it with Go; Debian's package "
            "prometheus has prometheus and promtool"
        )
    return Path(installed)


@pytest.fixture(scope="session")
def promtool() -> Path:
    return find_tool("promtool")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return find_tool("prometheus")


@pytest.fixture(scope="session")
def otelcol() -> Path:
    return find_tool("otelcol")


@pytest.fixture(scope="session")
def dashboard_reader() -> Path:
    return find_tool("read-dashboards")
