"""What happens to the files of an execution."""

from msgspec import Struct


class FilesChanged(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="files.changed",
):
    """Tasks have changed files; `entries` is how long the journal of the files is.

    Tasks that begin later read the journal at least so far.
    """

    entries: int
