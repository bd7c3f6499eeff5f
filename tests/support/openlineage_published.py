"""OpenLineage's published JSON Schema, from a folder of its files, as the judge of run events."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from msgspec import Struct
from referencing import Registry
from referencing.jsonschema import DRAFT202012, SchemaResource
from tests.support.openlineage_schema import FORMATS_CHECKED

_VERSION = re.compile(r"/(\d+)-(\d+)-(\d+)/")
_HOLDERS = ("facets", "inputFacets", "outputFacets")


class SpecMissingError(LookupError):
    """The folder lacks a file that an event names."""


class Judgement(Struct, frozen=True, kw_only=True):
    """What a file says of an event or of one of its facets; nothing wrong: it fits.

    `asked` is the address that the event names, `by` that of the file that judged: the same, or
    where the folder has no such version the newest one of the same name.
    """

    what: str
    asked: str
    by: str
    wrong: list[str]


class Published:
    """The files below a folder by their `$id`; references between them are followed locally."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._document_by_id: dict[str, Any] = {}
        for file in sorted(folder.rglob("*.json")):
            document = msgspec.json.decode(file.read_bytes())
            if isinstance(document, dict) and "$id" in document:
                Draft202012Validator.check_schema(document)
                self._document_by_id[document["$id"]] = document
        self._nearest("OpenLineage.json")
        self._registry: Registry[Any] = Registry(retrieve=self._retrieve)  # type: ignore[call-arg]  # an alias that attrs gives a field

    def judge(self, event: dict[str, Any]) -> list[Judgement]:
        """Hold an event and each of its facets against the file that it names itself."""
        by = self._nearest(_base(event["schemaURL"]))
        wrong = [
            *self._errors({"$ref": event["schemaURL"]}, event),
            *self._errors({"$ref": by}, event),
        ]
        whole = Judgement(what="event", asked=_base(event["schemaURL"]), by=by, wrong=wrong)
        return [whole, *(self._judge_facet(*item) for item in _facets(event))]

    def _judge_facet(self, name: str, body: dict[str, Any]) -> Judgement:
        asked = _base(body["_schemaURL"])
        by = self._nearest(asked)
        wrong = [
            *self._errors({"$ref": body["_schemaURL"]}, body),
            # The file says under which name its facet goes.
            *self._errors({"$ref": by}, {name: body}),
        ]
        if name not in self._document_by_id[by]["properties"]:
            wrong.append(f"the file knows no facet of the name {name}")
        return Judgement(what=name, asked=asked, by=by, wrong=wrong)

    def _errors(self, schema: dict[str, Any], value: Any) -> Iterator[str]:
        validator = Draft202012Validator(
            schema, registry=self._registry, format_checker=FORMATS_CHECKED
        )
        for error in validator.iter_errors(value):
            yield f"{error.json_path}: {error.message}"

    def _retrieve(self, uri: str) -> SchemaResource:
        return DRAFT202012.create_resource(self._document_by_id[self._nearest(uri)])

    def _nearest(self, uri: str) -> str:
        if uri in self._document_by_id:
            return uri
        name = uri.rpartition("/")[2]
        others = [item for item in self._document_by_id if item.rpartition("/")[2] == name]
        if not others:
            raise SpecMissingError(f"{self._folder} has no file whose $id ends in {name}: {uri}")
        return max(others, key=_version)


def _version(uri: str) -> tuple[int, ...]:
    match = _VERSION.search(uri)
    return tuple(map(int, match.groups())) if match is not None else ()


def _base(address: str) -> str:
    return address.partition("#")[0]


def _facets(event: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for holder in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for kind in _HOLDERS:
            yield from holder.get(kind, {}).items()
