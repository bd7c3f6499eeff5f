"""What a playbook says of the data that its steps touch, before any run."""

from msgspec import Struct


class Dataset(Struct, frozen=True, kw_only=True, order=True):
    """A table, a file or an address, by the place that knows it and its name there."""

    namespace: str
    name: str


class StepData(Struct, frozen=True, kw_only=True):
    """What a step reads and writes besides its result, as far as its text tells.

    `uses` are the steps whose results its templates name. `statements` are its SQL as written:
    templates in it are not filled in.
    """

    kind: str
    uses: tuple[str, ...] = ()
    reads: tuple[Dataset, ...] = ()
    writes: tuple[Dataset, ...] = ()
    statements: tuple[str, ...] = ()
    dialect: str | None = None
