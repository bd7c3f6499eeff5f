"""A dossier is checked without a browser: each thing that was done to it is found and named."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import ApiWorld, beginning, ending
from tests.support.storage import an_execution
from tests.unit.planner_http.test_logs_api import chunk_of
from typer.testing import CliRunner

from noetl_cli.__main__ import app
from noetl_cli.audit import dossier, dossier_check, dossier_page
from noetl_cli.audit.dossier import PARTS, SealedEvent
from noetl_cli.errors import CliError, ExitCode
from noetl_contracts import codec
from noetl_contracts.ledger import stored_event
from noetl_contracts.log_chunks import build_chunk_name
from noetl_storage.memory.ledger import MemoryLedgerAudit

PAGE = "<html><head></head><body><!--@parts@--></body></html>"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Parts = dict[str, Any]


async def make_parts() -> tuple[Parts, dict[str, Any]]:
    """The parts of a dossier of a small run, and its seal without their digests."""
    world, execution_id = ApiWorld(), an_execution()
    await world.append(execution_id, [*beginning(), *ending()])
    events = await MemoryLedgerAudit(world.store).read_stored_events(execution_id, events_max=10)
    chunk = chunk_of(execution_id, ["line one", "</script>"])
    data = codec.encode_json(chunk)
    parts = {
        "events": [
            codec.to_builtins(
                SealedEvent(
                    text=stored_event.encode_covered_fields(event).decode(),
                    checksum=event.envelope_checksum,
                    concealed=False,
                    altered=(),
                )
            )
            for event in events
        ],
        "payloads": [],
        "logs": [
            {
                "name": build_chunk_name(chunk, NOON),
                "sha256": codec.digest_hex(data),
                "bytes": len(data),
                "content": base64.b64encode(data).decode(),
                "left_out": "",
            }
        ],
        "moments": {"pool": [], "moments": {}},
        "answers": {},
    }
    seal = {
        "format": dossier.FORMAT,
        "format_version": dossier.FORMAT_VERSION,
        "execution_id": execution_id,
        "path": "demo/hello",
        "tenant_id": "acme",
        "organization_id": "west",
        "created_at": NOON,
        "exported_by": "ann",
        "producer": "a test",
        "permissions": [],
        "head": {"version": len(events), "checksum": events[-1].envelope_checksum},
        "left_out": [],
    }
    return parts, seal


def write_dossier(file: Path, parts: Parts, seal: dict[str, Any]) -> Path:
    blocks = {name: dossier.encode_block(parts[name]) for name in PARTS}
    sums = {name: dossier.seal_part(block) for name, block in blocks.items()}
    sealed = dossier.encode_block({**seal, "parts": sums})
    file.write_bytes(dossier.fill_page(PAGE, sealed, blocks))
    return file


async def check_changed(folder: Path, change: Callable[[Parts, dict[str, Any]], None]) -> list[str]:
    """What is found in a dossier that somebody changed and sealed again."""
    parts, seal = await make_parts()
    change(parts, seal)
    blocks = dossier_page.read_blocks(write_dossier(folder / "d.html", parts, seal))
    found = dossier_check.check_dossier(blocks).findings
    return [f"{finding.name}: {finding.message}" for finding in found]


async def test_a_dossier_as_it_was_exported_is_whole(tmp_path: Path) -> None:
    parts, seal = await make_parts()
    check = dossier_check.check_dossier(
        dossier_page.read_blocks(write_dossier(tmp_path / "d.html", parts, seal))
    )
    assert check.findings == []
    assert (check.events, check.chunks) == (4, 1)


def change_event(parts: Parts, seal: dict[str, Any]) -> None:
    parts["events"][1]["text"] = parts["events"][1]["text"].replace("start", "begin")


def take_event(parts: Parts, seal: dict[str, Any]) -> None:
    del parts["events"][2]


def take_last(parts: Parts, seal: dict[str, Any]) -> None:
    del parts["events"][3]


def swap_events(parts: Parts, seal: dict[str, Any]) -> None:
    parts["events"][1:3] = reversed(parts["events"][1:3])


def spell_event(parts: Parts, seal: dict[str, Any]) -> None:
    parts["events"][1]["text"] += " "


def change_lines(parts: Parts, seal: dict[str, Any]) -> None:
    parts["logs"][0]["content"] = base64.b64encode(b"{}").decode()


def spoil_bytes(parts: Parts, seal: dict[str, Any]) -> None:
    parts["logs"][0]["content"] = "!"


def take_lines(parts: Parts, seal: dict[str, Any]) -> None:
    parts["logs"][0].update(content=None, left_out="missing")


def put_payload(parts: Parts, seal: dict[str, Any]) -> None:
    parts["payloads"].append(
        {"name": "x", "sha256": "0" * 64, "bytes": 1, "content": "AA==", "left_out": ""}
    )


def other_run(parts: Parts, seal: dict[str, Any]) -> None:
    seal["execution_id"] = "72057594037927999"


def other_format(parts: Parts, seal: dict[str, Any]) -> None:
    seal["format_version"] = 99


def other_shape(parts: Parts, seal: dict[str, Any]) -> None:
    parts["events"] = {"text": "x"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (change_event, "event 2, changed"),
        (take_event, "version 3 was removed"),
        (take_last, "version 4 was removed"),
        (swap_events, "reordered"),
        (spell_event, "line 2 of the events: It is no event as one is sealed."),
        (change_lines, "Its bytes were changed"),
        (spoil_bytes, "Its bytes were changed"),
        (take_lines, "It is not here: missing."),
        (put_payload, "payload 000000000000: No event refers to it"),
        (put_payload, "Its bytes were changed"),
        (other_run, "events: Some are of execution"),
        (other_format, "seal: It is of format"),
        (other_shape, "part events: It cannot be read"),
    ],
)
async def test_what_was_changed_and_sealed_again_is_found(
    tmp_path: Path, change: Callable[[Parts, dict[str, Any]], None], text: str
) -> None:
    found = await check_changed(tmp_path, change)
    assert any(text in one for one in found), found


@pytest.mark.parametrize("name", PARTS)
async def test_a_part_that_is_changed_missing_or_there_twice_is_named(
    tmp_path: Path, name: str
) -> None:
    parts, seal = await make_parts()
    text = write_dossier(tmp_path / "whole.html", parts, seal).read_text()
    block = f'<script type="application/json" id="dossier-{name}">'
    changes = {
        "changed": text.replace(block, f"{block} "),
        "missing": text.replace(block, "<script>"),
        "2 times": text.replace(block, f'<p id="dossier-{name}"></p>{block}'),
    }
    for word, changed in changes.items():
        file = tmp_path / f"{word}.html"
        file.write_text(changed)
        found = dossier_check.check_dossier(dossier_page.read_blocks(file)).findings
        messages = [finding.message for finding in found if finding.name == f"part {name}"]
        assert any(word in message for message in messages), (word, found)


async def test_the_command_says_what_it_checked_and_compares_the_seal(tmp_path: Path) -> None:
    file = write_dossier(tmp_path / "d.html", *await make_parts())
    whole = CliRunner().invoke(app, ["evidence", "check", str(file), "--json"])
    assert whole.exit_code == ExitCode.OK, whole.output
    shown = json.loads(whole.stdout)
    assert (shown["findings"], shown["events"]) == ([], 4)
    words = ["evidence", "check", str(file), "--seal"]
    assert (
        "all is as it was sealed" in CliRunner().invoke(app, [*words, shown["seal_digest"]]).stdout
    )
    other = CliRunner().invoke(app, [*words, "0" * 64])
    assert other.exit_code == ExitCode.FAILED
    assert "not the one that was given" in other.stdout


@pytest.mark.parametrize("content", [b"<html></html>", b"", b"\xff\xfe"])
def test_what_is_no_dossier_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "other.html"
    file.write_bytes(content)
    for place in (file, tmp_path / "nothing.html"):
        done = CliRunner().invoke(app, ["evidence", "check", str(place)])
        assert isinstance(done.exception, CliError)
        assert done.exception.exit_code == ExitCode.USAGE
