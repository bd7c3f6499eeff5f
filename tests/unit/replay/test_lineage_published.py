"""Files of a standard judge what names them: in the version that is named, else in the newest."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.openlineage_published import Judgement, Published, SpecMissingError

from noetl_contracts import codec

SITE = "https://openlineage.io/spec"
CORE = f"{SITE}/2-0-2/OpenLineage.json"
SQL = f"{SITE}/facets/1-1-0/SQLJobFacet.json"
# As small as may be, and of the published files' shape.
CORE_FILE = {
    "$id": CORE,
    "$defs": {
        "Base": {"type": "object", "required": ["_producer"]},
        "RunEvent": {
            "type": "object",
            "properties": {"eventTime": {"type": "string", "format": "date-time"}},
            "required": ["eventTime"],
        },
    },
    "oneOf": [{"$ref": "#/$defs/RunEvent"}],
}


def sql_file(version: str) -> dict[str, Any]:
    return {
        "$id": f"{SITE}/facets/{version}/SQLJobFacet.json",
        "$defs": {
            "SQLJobFacet": {
                "allOf": [{"$ref": f"{CORE}#/$defs/Base"}, {"required": ["query"]}],
            }
        },
        "type": "object",
        "properties": {"sql": {"$ref": "#/$defs/SQLJobFacet"}},
    }


def published(folder: Path, *files: dict[str, Any]) -> Published:
    (folder / "facets").mkdir()
    for number, file in enumerate(files):
        (folder / "facets" / f"{number}.json").write_bytes(codec.encode_json(file))
    (folder / "package.json").write_bytes(b'{"name": "something else"}')
    return Published(folder)


def event(**facet: Any) -> dict[str, Any]:
    facets = {"sql": {"_schemaURL": f"{SQL}#/$defs/SQLJobFacet", "_producer": "p"} | facet}
    return {
        "schemaURL": f"{CORE}#/$defs/RunEvent",
        "eventTime": "2026-01-01T12:00:00Z",
        "run": {},
        "job": {"facets": facets},
        "inputs": [],
        "outputs": [],
    }


def wrong(judged: list[Judgement]) -> dict[str, list[str]]:
    return {item.what: item.wrong for item in judged if item.wrong}


def test_an_event_and_its_facets_are_judged_by_the_files_that_they_name(tmp_path: Path) -> None:
    spec = published(tmp_path, CORE_FILE, sql_file("1-1-0"), sql_file("1-2-0"))
    judged = spec.judge(event(query="select 1"))
    assert [(item.what, item.asked == item.by) for item in judged] == [
        ("event", True),
        ("sql", True),
    ]
    assert wrong(judged) == {}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"eventTime": "2026-01-01T12:00:00"}, "event"),
        ({"eventTime": 7}, "event"),
        ({"job": {"facets": {"sql": {"_schemaURL": f"{SQL}#/$defs/SQLJobFacet"}}}}, "sql"),
        (
            {"job": {"facets": {"query": event(query="q")["job"]["facets"]["sql"]}}},
            "query",
        ),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    spec = published(tmp_path, CORE_FILE, sql_file("1-1-0"))
    assert list(wrong(spec.judge(event(query="q") | change))) == [what]


def test_a_version_that_is_not_there_is_judged_by_the_newest_that_is(tmp_path: Path) -> None:
    spec = published(tmp_path, CORE_FILE, sql_file("1-0-9"), sql_file("1-0-10"))
    (_, facet) = spec.judge(event())
    assert (facet.asked, facet.by) == (SQL, f"{SITE}/facets/1-0-10/SQLJobFacet.json")
    assert "'query' is a required property" in str(facet.wrong)


def test_a_file_that_is_not_there_in_any_version_is_named(tmp_path: Path) -> None:
    spec = published(tmp_path, CORE_FILE)
    with pytest.raises(SpecMissingError, match=r"SQLJobFacet\.json: https"):
        spec.judge(event(query="q"))


def test_a_folder_of_something_else_judges_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(msgspec.json.encode([1]))
    with pytest.raises(SpecMissingError, match="OpenLineage"):
        Published(tmp_path).judge(event(query="q"))
