"""A file of playbooks as a planner takes it: its text, and the scripts that lie beside it."""

from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from noetl_playbook.sections.script_files import SCRIPT_BYTES_MAX, ScriptFault


class PlaybookFile(Struct, frozen=True, kw_only=True):
    """A checked text and the scripts that its playbooks name, by their names."""

    text: str
    script_by_name: dict[str, str] = {}

    def build_body(self) -> dict[str, Any]:
        """Return the fields of a request."""
        # Planners of before do not know scripts.
        scripts = {"scripts": self.script_by_name} if self.script_by_name else {}
        return {"content": self.text, **scripts}


_ON_WORKERS = "a file below the script directory of the workers is written file:{name}"


class ScriptFolder:
    """Reads files below one folder; nothing leads out of it. None is standard input's."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @classmethod
    def from_file(cls, file: Path) -> "ScriptFolder":
        """Return the folder of a playbook's file; standard input has none."""
        return cls(None if str(file) == "-" else file.parent)

    def read_script(self, name: str) -> str:
        """Read a script; raises `ScriptFault`."""
        data = self._read_bytes(name)
        try:
            return data.decode()
        except UnicodeDecodeError as problem:
            text = f"script {name!r:.200} is not UTF-8: byte {problem.start} does not decode"
            raise ScriptFault(text, hint="save it as UTF-8") from problem

    def _read_bytes(self, name: str) -> bytes:
        if self._folder is None:
            raise ScriptFault(
                f"script {name!r:.200} lies beside the playbook, and standard input has no folder",
                hint="name the playbook's file",
            )
        path = self._resolve_path(name)
        try:
            # A pipe would be waited for.
            if path.exists() and not path.is_file():
                raise ScriptFault(f"script {name!r:.200} is no file", hint="name a file")
            with path.open("rb") as opened:
                # One byte more shows that there is more than a playbook carries.
                return opened.read(SCRIPT_BYTES_MAX + 1)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise ScriptFault(
                f"script {name!r:.200} cannot be read beside the playbook: {reason}",
                hint=_ON_WORKERS.format(name=name[:200]),
            ) from problem

    def _resolve_path(self, name: str) -> Path:
        assert self._folder is not None, "standard input was refused before"
        parts = PurePosixPath(name).parts
        if "\0" in name or "\\" in name or name.startswith("/") or ".." in parts:
            raise _outside_fault(name)
        root = self._folder.resolve()
        try:
            path = (root / name).resolve()
        except (OSError, RuntimeError) as problem:
            raise ScriptFault(f"script {name!r:.200} is a link without an end") from problem
        if not path.is_relative_to(root):
            raise _outside_fault(name)
        return path


def _outside_fault(name: str) -> ScriptFault:
    return ScriptFault(
        f"script {name!r:.200} leads out of the playbook's folder",
        hint="keep it beside or below the playbook, and write its path from there with '/'",
    )
