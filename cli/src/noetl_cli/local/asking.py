"""What is asked of a run in this process."""

from typing import Any

from msgspec import Struct

from noetl_cli.given_files import GivenFile
from noetl_cli.playbook_file import PlaybookFile


class Asked(Struct, frozen=True, kw_only=True):
    """What to run, with which inputs and credentials, and the playbooks that it may call."""

    source: PlaybookFile
    others: list[PlaybookFile] = []
    listens_at: int | None = None
    inputs: dict[str, Any]
    credentials: dict[str, dict[str, Any]]
    files: list[GivenFile] = []
