"""The files beside a document, as its reader gives them, and those that were read."""

from collections.abc import Callable

ReadScript = Callable[[str], str]


class ScriptReader:
    """Reads scripts by their names; `read_script` raises `ScriptFault`."""

    def __init__(self, read_script: ReadScript) -> None:
        self.read_script = read_script
        self.script_by_name: dict[str, str] = {}
