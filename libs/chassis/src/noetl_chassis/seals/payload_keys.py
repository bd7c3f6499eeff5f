"""Reads the keys of payloads for services that seldom have any: ciphers take 5 MiB."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetl_chassis.seals.key_management import KeyManagement
    from noetl_chassis.seals.payload_seal import PayloadSeals


def read_payload_seals(
    text: str, *, file: str, managed: "Callable[[str], KeyManagement]"
) -> "PayloadSeals | None":
    """Read keys as `read_payload_keys` does; where no setting names any, no cipher is loaded."""
    if not (text or file):
        return None
    payload_seal = importlib.import_module("noetl_chassis.seals.payload_seal")
    seals: PayloadSeals | None = payload_seal.read_payload_keys(text, file=file, managed=managed)
    return seals
