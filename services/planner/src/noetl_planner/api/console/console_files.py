"""The files of the console, as `make console` built them: each plain, and compressed if smaller."""

from functools import cache
from pathlib import Path

from msgspec import Struct

from noetl_contracts import codec

BUNDLE = Path(__file__).parent / "bundle"
INDEX = "index.html"
# Their names hold a digest of what is in them.
HASHED_FOLDER = "assets/"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".woff2": "font/woff2",
}
# The best first: the name of an encoding, and the end of such a file's name.
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))


class ServedFile(Struct, frozen=True, kw_only=True):
    """A file as one client takes it; `encoding` is empty for the plain one."""

    content: bytes
    media_type: str
    encoding: str
    etag: str
    is_hashed: bool


def has_bundle(bundle: Path = BUNDLE) -> bool:
    """Tell whether the console was built into this package."""
    return (bundle / INDEX).is_file()


def find_file(name: str, accepted: str, bundle: Path = BUNDLE) -> ServedFile | None:
    """Return a file in the best encoding of `Accept-Encoding`; None for a name that is not there.

    Names are looked up in a list of what was built: no name leads out of it.
    """
    if name not in _list_names(bundle):
        return None
    for encoding, end in _ENCODINGS:
        if _is_accepted(encoding, accepted) and f"{name}{end}" in _list_names(bundle):
            return _read_file(bundle, name, end, encoding)
    return _read_file(bundle, name, "", "")


def _is_accepted(encoding: str, accepted: str) -> bool:
    """Tell whether `Accept-Encoding` has an encoding, and does not refuse it by a weight of 0."""
    for part in accepted.lower().split(","):
        name, _, weight = part.replace(" ", "").partition(";q=")
        if name == encoding:
            return not weight or bool(weight.strip("0."))
    return False


@cache
def _list_names(bundle: Path) -> frozenset[str]:
    return frozenset(
        path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()
    )


@cache
def _read_file(bundle: Path, name: str, end: str, encoding: str) -> ServedFile:
    content = (bundle / f"{name}{end}").read_bytes()
    return ServedFile(
        content=content,
        media_type=_MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream"),
        encoding=encoding,
        etag=f'"{codec.digest_hex(content)[:32]}"',
        is_hashed=name.startswith(HASHED_FOLDER),
    )
