"""A dossier: one page that shows a run and checks its checksums, opened from the disk.

The planner serves the page of its release, with the program in it. The parts are blocks of JSON
that stand in it, and the seal has their digests. `console/src/dossier` reads them.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner.client import PlannerClient
from noetl_contracts import codec

FORMAT = "noetl.dossier"
FORMAT_VERSION = 1
PAGE_PATH = "/console/dossier.html"
PARTS = ("events", "payloads", "logs", "moments", "answers")
# A browser opens a page of this size in a few seconds.
BYTES_MAX = 64 * 1024 * 1024
SUFFIXES = (".html", ".htm")
_PLACE = "<!--@parts@-->"


class SealedEvent(Struct, frozen=True, kw_only=True):
    """The text that an event's checksum covers, and the checksum."""

    text: str
    checksum: str
    concealed: bool
    altered: tuple[str, ...]


class SealedPart(Struct, frozen=True, kw_only=True):
    """The digest and the size of a part, as its text stands in the page."""

    sha256: str
    bytes: int


class SealedHead(Struct, frozen=True, kw_only=True):
    """Where the history ends."""

    version: int
    checksum: str


class DossierSeal(Struct, frozen=True, kw_only=True):
    """Whose run it is, where its history ends, and the digests of the parts.

    `left_out` says in words what is not there.
    """

    format: str
    format_version: int
    execution_id: str
    path: str
    tenant_id: str
    organization_id: str
    created_at: datetime
    exported_by: str
    producer: str
    permissions: list[str]
    head: SealedHead
    parts: dict[str, SealedPart]
    left_out: list[str]


class ValuePool:
    """Values that are stored once, however many moments have them."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[bytes, int] = {}

    def add_fields(self, fields: Mapping[str, Any]) -> dict[str, int | list[int]]:
        """Return the places of the values of fields; of a list, the places of its items."""
        return {
            name: [self.add_value(item) for item in value]
            if isinstance(value, list)
            else self.add_value(value)
            for name, value in fields.items()
        }

    def add_value(self, value: Any) -> int:
        """Return the place of a value."""
        data = codec.encode_json(value)
        place = self._places.setdefault(data, len(self.values))
        if place == len(self.values):
            self.values.append(value)
        return place


def encode_block(value: Any) -> str:
    """Encode a value as JSON that may stand in a page: nothing in it begins a tag."""
    return codec.encode_text(value).replace("<", "\\u003c")


def seal_part(block: str) -> SealedPart:
    """Sum a part as it stands in the page."""
    data = block.encode()
    return SealedPart(sha256=codec.digest_hex(data), bytes=len(data))


def get_page(planner: PlannerClient) -> str:
    """Return the page of dossiers of the planner's release; raises `CliError`."""
    page = planner.get_text(PAGE_PATH)
    if page.count(_PLACE) != 1:
        raise CliError(
            "The planner's console has no page of dossiers: it is of an earlier release.",
            way_out="Write the evidence into a folder: noetl evidence export ID",
        )
    return page


def fill_page(page: str, seal: str, blocks: Mapping[str, str]) -> bytes:
    """Put the seal and the parts into the page; raises `CliError` for a page that is too large."""
    named = {"seal": seal, **{name: blocks[name] for name in PARTS}}
    elements = "\n".join(
        f'<script type="application/json" id="dossier-{name}">{block}</script>'
        for name, block in named.items()
    )
    data = page.replace(_PLACE, elements).encode()
    if len(data) > BYTES_MAX:
        sizes = ", ".join(
            f"{name} {len(blocks[name].encode()) / 1e6:.1f} MB"
            for name in sorted(PARTS, key=lambda name: -len(blocks[name]))
        )
        raise CliError(
            f"The dossier would have {len(data) / 1e6:.1f} MB, and {BYTES_MAX / 1e6:.1f} MB is the "
            f"most: {sizes}.",
            way_out="Leave out payloads with --payload-bytes 0, or write a folder without --html.",
            exit_code=ExitCode.USAGE,
        )
    return data


def choose_file(output: Path | None, execution_id: str) -> Path:
    """Return the new file's path, in a folder if one is named; raises `CliError`."""
    name = f"dossier-{execution_id}.html"
    if output is None:
        file = Path(name)
    elif output.suffix.lower() in SUFFIXES and not output.is_dir():
        file = output
    else:
        file = output / name
    if file.exists():
        raise CliError(
            f"{file} is there already.",
            way_out="Name a new file with --output: evidence is never written over.",
            exit_code=ExitCode.USAGE,
        )
    return file


def write_page(file: Path, data: bytes) -> None:
    """Write a new file; raises `CliError`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as new:
            new.write(data)
    except OSError as failure:
        raise CliError(
            f"The dossier cannot be written to {file}: {failure.strerror}.",
            way_out="Name another file with --output.",
        ) from failure
