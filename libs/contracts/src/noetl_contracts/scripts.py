"""Texts of scripts that an execution has read from outside, kept so that all of it runs them."""

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId

SCRIPTS = "scripts"


def pin_name(execution_id: ExecutionId, *, uri: str, auth: str) -> str:
    """Name the object that holds what an execution has read first from an address."""
    digest = codec.digest(codec.canonical([uri, auth])).removeprefix("sha256:")
    return f"{SCRIPTS}/{execution_id}/{digest}"
