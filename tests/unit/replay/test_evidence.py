"""A folder of evidence checks green anywhere, and every damage to it has its own sentence."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.replay import record
from tests.support.builders import a_cancelled_run, a_single_step, stories
from tests.support.proving import (
    Files,
    a_folder,
    edited,
    indexed,
    reindexed,
    relined,
    replaced,
)

from noetl_contracts import codec
from noetl_replay import comparison, state
from noetl_replay.audit import evidence, evidence_folder

Damaging = Callable[[Files], Files]


def without(path: str) -> Damaging:
    return lambda files: {name: data for name, data in files.items() if name != path}


def put(path: str, data: bytes) -> Damaging:
    return lambda files: {**files, path: data}


def entry(role: str, **fields: Any) -> Damaging:
    def change(index: Any) -> None:
        for item in index["entries"]:
            if item["role"] == role:
                item.update(fields)

    return reindexed(change)


def one_row(rows: dict[str, list[Any]], surface: str = "frame") -> Any:
    return rows[surface][0]


def recounted(change: Callable[[dict[str, Any]], None]) -> Damaging:
    """Change live rows, with their counts and checksum, as whoever forges them would."""

    def forge(body: Any) -> None:
        change(body["rows"])
        body["row_counts"] = {surface: len(found) for surface, found in body["rows"].items()}
        body["rows_checksum"] = codec.compute_checksum(body["rows"])

    return edited("live_rows", forge)


def restated(body: Any) -> None:
    body["state"]["ctx"] = {"seen": 99}
    body["state_checksum"] = codec.compute_checksum(body["state"])


def rerowed(body: Any) -> None:
    for row in body["surfaces"]["frame"].values():
        row["row_count"] = 1
    body["projection_checksums"]["frame"] = codec.compute_checksum(body["surfaces"]["frame"])


def renamed_file(files: Files) -> Files:
    index = codec.decode_json(files[evidence.INDEX])
    for entry in index["entries"]:
        if entry["role"] == "payloads":
            entry["path"] = "other.json"
    moved = {("other.json" if name == "payloads.json" else name): files[name] for name in files}
    return {**moved, evidence.INDEX: codec.encode_json(index)}


def swap_steps(body: Any) -> None:
    body["steps"][0], body["steps"][1] = body["steps"][1], body["steps"][0]


def unresolve(body: Any) -> Any:
    checks = [codec.convert_value(payload, evidence.PayloadCheck) for payload in body["payloads"]]
    missing = [
        *checks[1:],
        evidence.PayloadCheck(sha256=checks[0].sha256, uri="u", status="missing"),
    ]
    return evidence.build_payload_report(missing)


def fewer_payloads(body: Any) -> Any:
    checks = [codec.convert_value(payload, evidence.PayloadCheck) for payload in body["payloads"]]
    return evidence.build_payload_report(checks[1:])


def more_payloads(body: Any) -> Any:
    checks = [codec.convert_value(payload, evidence.PayloadCheck) for payload in body["payloads"]]
    extra = evidence.PayloadCheck(sha256="f" * 64, uri="u", status=evidence.RESOLVED)
    return evidence.build_payload_report([*checks, extra])


DAMAGE: dict[str, Damaging] = {
    "index_missing": without(evidence.INDEX),
    "index_not_json": put(evidence.INDEX, b"{"),
    "index_shape": put(evidence.INDEX, b"[]"),
    "index_format": reindexed(lambda index: index.update(format_version=9)),
    "path_base": reindexed(lambda index: index.update(path_base="/tmp")),  # noqa: S108 - it is text
    "manifest_pointer": reindexed(lambda index: index.update(manifest="x.json")),
    "role_missing": reindexed(lambda index: index["entries"].pop(2)),
    "role_twice": reindexed(lambda index: index["entries"].append(index["entries"][0])),
    "role_unknown": reindexed(lambda i: i["entries"].append({**i["entries"][0], "role": "x"})),
    "file_extra": put("notes.txt", b"hello"),
    "path_absolute": entry("replay", path="/replay.json"),
    "path_escapes": entry("replay", path="x/../../replay.json"),
    "path_other": renamed_file,
    "digest_shape": entry("replay", sha256="ABC"),
    "file_missing": without("replay.json"),
    "file_size": put("replay.json", b"{}"),
    "file_digest": lambda files: {**files, "events.jsonl": files["events.jsonl"][:-1] + b" "},
    "manifest_not_json": replaced("manifest.json", b"{"),
    "manifest_shape": replaced("manifest.json", b"{}"),
    "manifest_format": edited("manifest", lambda body: body.update(format="other")),
    "index_pointer": edited("manifest", lambda body: body.update(artifact_index="x.json")),
    "time_zone": edited("manifest", lambda body: body.update(created_at="2026-01-01T00:00:00")),
    "step_missing": edited("manifest", lambda body: body["steps"].pop()),
    "step_unknown": edited("manifest", lambda body: body["steps"][0].update(name="guess")),
    "step_order": edited("manifest", swap_steps),
    "step_zone": edited(
        "manifest", lambda body: body["steps"][0].update(ended_at="2026-01-01T12:00:00")
    ),
    "step_time": edited(
        "manifest", lambda body: body["steps"][0].update(ended_at="2020-01-01T12:00:00Z")
    ),
    "step_failed": edited("manifest", lambda body: body["steps"][1].update(outcome="failed")),
    "outcome": edited("manifest", lambda body: body.update(outcome="failed")),
    "events_line": replaced("events.jsonl", b"{}\n"),
    "events_empty": replaced("events.jsonl", b""),
    "events_scope": relined(lambda lines: lines[3].update(tenant_id="other")),
    "events_changed": relined(lambda lines: lines[3].update(producer="somebody")),
    "events_removed": relined(lambda lines: lines.pop(5)),
    "events_inserted": relined(lambda lines: lines.insert(5, {**lines[5], "event_id": "7"})),
    "events_column": relined(lambda lines: lines[3].update(altered=["status"])),
    "events_unreadable": relined(lambda lines: lines[3]["event"].update(event_type="x.y")),
    "events_concealed": relined(lambda lines: lines[3].update(concealed=True)),
    "replay_not_json": replaced("replay.json", b"nothing"),
    "replay_shape": replaced("replay.json", b"[]"),
    "replay_scope": edited("replay", lambda body: body.update(organization_id="east")),
    "replay_position": edited("replay", lambda body: body.update(version=3)),
    "replay_algorithm": edited("replay", lambda body: body.update(checksum_algorithm="md5")),
    "replay_partial": edited("replay", lambda body: body.update(projection="frame")),
    "replay_state": edited("replay", lambda body: body["state"].update(path="x")),
    "replay_surface_missing": edited("replay", lambda body: body["surfaces"].pop("loop")),
    "replay_surface_unknown": edited("replay", lambda body: body["surfaces"].update(x={})),
    "replay_surface": edited("replay", lambda body: body["surfaces"]["frame"].clear()),
    "replay_checksum_missing": edited(
        "replay", lambda body: body["projection_checksums"].pop("frame")
    ),
    "replay_checksum_extra": edited(
        "replay", lambda body: body["projection_checksums"].update(x="0" * 64)
    ),
    "replay_release": edited("replay", lambda body: body.update(fold_version=99)),
    "replay_not_folded": edited("replay", restated),
    "replay_rows_not_folded": edited("replay", rerowed),
    "live_rows_not_json": replaced("live-rows.json", b"{"),
    "live_rows_shape": replaced("live-rows.json", b"{}"),
    "live_rows_scope": edited("live_rows", lambda body: body.update(tenant_id="other")),
    "live_rows_position": edited("live_rows", lambda body: body.update(version=1)),
    "live_format": edited("live_rows", lambda body: body.update(format_version=7)),
    "live_adapter": edited("live_rows", lambda body: body.update(adapter="")),
    "live_zone": edited("live_rows", lambda body: body.update(exported_at="2026-01-01T00:00:00")),
    "live_rows_surface_missing": recounted(lambda rows: rows.pop("loop")),
    "live_rows_surface_unknown": recounted(lambda rows: rows.update(x=[])),
    "live_counts": edited("live_rows", lambda body: body["row_counts"].update(frame=99)),
    "live_checksum": edited("live_rows", lambda body: one_row(body["rows"]).update(row_count=1)),
    "live_key": recounted(lambda rows: one_row(rows).pop("frame_id")),
    "live_twice": recounted(lambda rows: rows["frame"].append(rows["frame"][0])),
    "live_stranger": recounted(lambda rows: one_row(rows).update(tenant_id="other")),
    "parity": recounted(lambda rows: one_row(rows).update(row_count=77)),
    "checksums_not_json": replaced("checksums.json", b"{"),
    "checksums_shape": replaced("checksums.json", b"{}"),
    "checksum_algorithm": edited("checksums", lambda body: body.update(algorithm="md5")),
    "checksums_replay": edited("checksums", lambda body: body["replayed"].update(frame="0" * 64)),
    "checksums_live": edited("checksums", lambda body: body["live"].update(frame="0" * 64)),
    "checksums_verdict": edited("checksums", lambda body: body.update(is_equal=False)),
    "payloads_not_json": replaced("payloads.json", b"{"),
    "payloads_shape": replaced("payloads.json", b"{}"),
    "payloads_summary": edited("payloads", lambda body: body["summary"].update(resolved=0)),
    "payload_unresolved": edited("payloads", unresolve),
    "payload_unlisted": edited("payloads", fewer_payloads),
    "payload_unknown": edited("payloads", more_payloads),
}


def test_there_are_thirty_kinds_of_damage_and_more() -> None:
    assert len(DAMAGE) >= 30


@pytest.mark.parametrize("code", DAMAGE)
def test_every_damage_has_its_own_sentence(code: str) -> None:
    folder = evidence_folder.check_folder(DAMAGE[code](a_folder()))
    assert code in {item.code for item in folder}, folder
    assert all(item.message and item.artifact for item in folder)


def test_no_two_kinds_of_damage_say_the_same() -> None:
    said: dict[str, str] = {}
    for code, damage in DAMAGE.items():
        for item in evidence_folder.check_folder(damage(a_folder())):
            if item.code == code:
                said.setdefault(item.message, code)
    assert len(said) == len(DAMAGE)


@pytest.mark.parametrize("name", [name for name, _ in stories()])
def test_the_evidence_of_every_story_checks_green(name: str) -> None:
    history = dict(stories())[name]
    assert evidence_folder.check_folder(a_folder(history)) == []


def test_evidence_says_the_same_wherever_it_lies_and_in_any_order() -> None:
    files = a_folder(a_cancelled_run())
    assert evidence_folder.check_folder(dict(reversed(files.items()))) == []


def test_evidence_of_one_execution_does_not_pass_for_another() -> None:
    ours, theirs = a_folder(a_cancelled_run()), a_folder(a_single_step())
    mixed = indexed({**ours, "live-rows.json": theirs["live-rows.json"]})
    assert "parity" in {item.code for item in evidence_folder.check_folder(mixed)}


@pytest.mark.parametrize("name", record.names())
def test_every_field_of_every_row_is_covered_by_its_surface(name: str) -> None:
    """A hand that changes any field of any row moves the checksum of its surface."""
    history = record.load(name)
    first = history[0]
    begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    _, surfaces = comparison.replay_surfaces(begun, history)
    for surface, found in surfaces.items():
        before = codec.compute_checksum(found)
        for key, row in found.items():
            for field in row:
                changed = {**found, key: {**row, field: ["changed", row[field]]}}
                assert codec.compute_checksum(changed) != before, (surface, field)
