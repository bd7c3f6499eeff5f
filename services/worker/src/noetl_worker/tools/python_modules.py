"""The modules that a `python` task asks for: `libs` and `deps`."""

import sys
from pathlib import Path
from typing import Any

from noetl_worker.domain.failures import ToolFailure, failure

_DEPS = frozenset({"packages", "sys_path", "venv_path"})


def read_libs(libs: Any) -> tuple[dict[str, Any], list[str]]:
    """Return modules by alias, and required distributions; raises `ToolFailure`."""
    if libs is None:
        return {}, []
    if isinstance(libs, list):
        return {}, [str(name) for name in libs]
    if not isinstance(libs, dict):
        raise _invalid("field 'libs' must be a mapping or a list of distribution names")
    for alias, wanted in libs.items():
        is_known = isinstance(wanted, str) or (
            isinstance(wanted, dict) and {"from", "import"} == wanted.keys()
        )
        if not is_known:
            raise _invalid(f"field 'libs.{alias}' must be a module or {{from: …, import: …}}")
    return libs, []


def read_paths(deps: Any) -> list[str]:
    """Return where modules are looked for first; raises `ToolFailure`."""
    if deps is None:
        return []
    if not isinstance(deps, dict) or not deps.keys() <= _DEPS:
        raise _invalid("field 'deps' must be a mapping of 'packages', 'sys_path' and 'venv_path'")
    given = deps.get("sys_path") or []
    paths = [str(path) for path in (given if isinstance(given, list) else [given])]
    if deps.get("venv_path"):
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        paths.append(str(Path(str(deps["venv_path"])) / "lib" / version / "site-packages"))
    for path in paths:
        if not Path(path).is_dir():
            text = f"field 'deps': there is no directory '{path}' on this worker"
            raise ToolFailure(failure("missing_dependency", text, source="python"))
    return [str(Path(path).resolve()) for path in paths]


def _invalid(text: str) -> ToolFailure:
    return ToolFailure(failure("validation", text, source="python"))
