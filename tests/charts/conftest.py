"""Why charts are not rendered, where they cannot be."""

from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parent
collect_ignore = [] if find_spec("helm_python") else ["test_rendered_charts.py"]


def pytest_report_header() -> list[str]:
    if find_spec("helm_python"):
        return []
    return ["charts are not rendered: Helm is not installed, which `make test/charts` does"]
