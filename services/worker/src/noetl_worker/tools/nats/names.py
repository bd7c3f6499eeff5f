"""Names in NATS that tasks may use: well formed, and none of the engine's or the server's own."""

import re

_BUCKET = re.compile(r"[A-Za-z0-9_-]{1,200}")
_KEY = re.compile(r"[A-Za-z0-9_=/-]+(?:\.[A-Za-z0-9_=/-]+)*")
_SUBJECT = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(?:\.[^\s.*>\x00-\x1f\x7f]+)*")
_STREAM = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_NAME_CHARACTERS_MAX = 1024
_OWN = "noetl"
_STORE_PREFIXES = ("kv_", "obj_")
_SERVERS_OWN = ("$", "_inbox")


class InvalidNatsName(Exception):  # noqa: N818 - it says what the name is
    """A name is malformed, or belongs to the engine or the server."""

    def __init__(self, message: str, *, is_refused: bool = False) -> None:
        super().__init__(message)
        self.is_refused = is_refused


def check_bucket_name(name: str) -> None:
    """Check a bucket's name; raises `InvalidNatsName`."""
    if not _BUCKET.fullmatch(name):
        raise InvalidNatsName(f"'{name[:80]}' is not a bucket's name: letters, digits, _ and -")
    _check_name_owner(name, "bucket")


def check_key_name(key: str) -> None:
    """Check a key; raises `InvalidNatsName`."""
    if len(key) > _NAME_CHARACTERS_MAX or not _KEY.fullmatch(key):
        raise InvalidNatsName(
            f"'{key[:80]}' is not a key: letters, digits, -, _, = and /, in parts joined by dots"
        )


def check_stream_name(name: str) -> None:
    """Check a stream's name; raises `InvalidNatsName`."""
    if not _STREAM.fullmatch(name):
        raise InvalidNatsName(f"'{name[:80]}' is not a stream's name")
    bare = name
    for prefix in _STORE_PREFIXES:
        if bare.lower().startswith(prefix):
            bare = bare[len(prefix) :]
    _check_name_owner(bare, "stream")


def check_subject_name(subject: str) -> None:
    """Check a subject to publish to or to read of; raises `InvalidNatsName`."""
    if len(subject) > _NAME_CHARACTERS_MAX or not _SUBJECT.fullmatch(subject):
        raise InvalidNatsName(f"'{subject[:80]}' is not a subject without wildcards")
    first = subject.partition(".")[0].lower()
    if first == _OWN or first.startswith(_SERVERS_OWN):
        raise InvalidNatsName(
            f"subject '{subject[:80]}' belongs to the engine or the server: use one of your own",
            is_refused=True,
        )


def check_object_name(name: str) -> None:
    """Check an object's name; raises `InvalidNatsName`."""
    if not name or len(name) > _NAME_CHARACTERS_MAX or any(ord(char) < 32 for char in name):  # noqa: PLR2004 - control characters end at 32
        raise InvalidNatsName(f"'{name[:80]}' is not an object's name")


def _check_name_owner(name: str, noun: str) -> None:
    lowered = name.lower()
    if lowered == _OWN or lowered.startswith((f"{_OWN}_", f"{_OWN}-")):
        raise InvalidNatsName(
            f"{noun} '{name}' belongs to the engine: use a name that does not begin with {_OWN}",
            is_refused=True,
        )
