"""Names of files as playbooks write them.

A relative name, also as `file://name`, is a file of the execution. `noetl://files/<path>`, and an
absolute path below the organization's folder, is a file of the organization: it outlives the
execution.
"""

from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from noetl_contracts.execution_files import FilePathError, check_file_path
from noetl_worker.domain.failures import ToolFailure, failure

ORGANIZATION_PREFIX = "noetl://files/"
_FILE = "file://"


class FileName(Struct, frozen=True, kw_only=True):
    """A file of the execution, or of its organization; `path` is relative to their folder."""

    path: str
    is_of_organization: bool = False


def parse_file_name(text: Any, *, organization_folder: Path | None) -> FileName:
    """Read the name of a file; raises `ToolFailure` for one that leads out of its folder."""
    if not isinstance(text, str) or not text:
        raise _refused(f"a file is named by a text, not by {text!r:.120}")
    if text.startswith(ORGANIZATION_PREFIX):
        name = unquote(text.removeprefix(ORGANIZATION_PREFIX))
        return FileName(path=_checked_path(name, text), is_of_organization=True)
    name = unquote(text.removeprefix(_FILE)) if text.startswith(_FILE) else text
    if not name.startswith("/"):
        return FileName(path=_checked_path(name, text))
    if organization_folder is None or not Path(name).is_relative_to(organization_folder):
        raise _refused(
            f"{text!r:.120} is outside the folders that tasks may use: name a file of this "
            "execution by a relative path such as 'data/rows.csv', and a file that outlives it "
            f"by '{ORGANIZATION_PREFIX}rows.csv'"
        )
    inner = PurePosixPath(name).relative_to(organization_folder).as_posix()
    return FileName(path=_checked_path(inner, text), is_of_organization=True)


def is_organization_name(text: Any) -> bool:
    """Tell whether a text names a file of the organization by its address."""
    return isinstance(text, str) and text.startswith(ORGANIZATION_PREFIX)


def _checked_path(name: str, text: str) -> str:
    try:
        return check_file_path(name)
    except FilePathError as problem:
        raise _refused(f"{text!r:.120} {problem}") from problem


def _refused(text: str) -> ToolFailure:
    return ToolFailure(failure("config", text))
