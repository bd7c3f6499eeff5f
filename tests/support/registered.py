"""Playbooks as a catalog may hold them: with values that whoever reads them now would refuse."""

from typing import Any

from noetl_contracts import codec
from noetl_contracts.ids import CatalogId
from noetl_planner.domain.decision.program import Program
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.parse.playbook import parse_playbook


def registered(text: str, *changes: tuple[str, Any]) -> Program:
    """Read a good playbook, and put values at places of its canonical form."""
    parsed = parse_playbook(text)
    assert parsed.playbook is not None, [str(problem) for problem in parsed.problems]
    model = codec.decode_json(codec.encode_json(parsed.playbook))
    for place, value in changes:
        put(model, place.split("/"), value)
    playbook = codec.convert_value(model, Playbook)
    return Program(playbook, catalog_id=CatalogId("1"), catalog_version=1, digest="d" * 64)


def put(at: Any, path: list[str], value: Any) -> None:
    """Put a value at a place of a document; mappings on the way to it are made."""
    key: Any = int(path[0]) if isinstance(at, list) else path[0]
    if not path[1:]:
        at[key] = value
        return
    if isinstance(at, dict):
        at.setdefault(key, {})
    put(at[key], path[1:], value)
