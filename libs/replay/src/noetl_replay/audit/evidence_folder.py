"""Prove a folder of evidence again, from nothing but its files; each damage has its own sentence.

First the folder is checked as such: its index, digests and shapes. Only a folder that is whole is
then checked for what it says: the chain of events, what they fold to, and parity with the live
rows.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay.audit import evidence, evidence_truth
from noetl_replay.audit.evidence import (
    FILE_BY_ROLE,
    ArtifactIndex,
    EvidenceManifest,
    EvidenceParts,
    EvidenceProblem,
    EvidenceUnreadable,
    IndexEntry,
    read_part,
)

_SHA256 = re.compile(r"[0-9a-f]{64}")

Files = Mapping[str, bytes]


def check_folder(files: Files) -> list[EvidenceProblem]:
    """List all that is wrong with a folder; empty means that it proves what it says."""
    try:
        index = _read_index(files)
    except EvidenceUnreadable as failure:
        return [failure.problem]
    problems = [*_list_index_problems(files, index), *_list_entry_problems(files, index)]
    if problems:
        return problems
    return _list_content_problems(files)


def read_folder_events(files: Files) -> list[StoredEvent]:
    """Return the events of a folder that was checked; raises `EvidenceUnreadable`."""
    events: list[StoredEvent] = read_part("events", files[FILE_BY_ROLE["events"]])
    return events


def _list_content_problems(files: Files) -> list[EvidenceProblem]:
    by_role = {role: files[path] for role, path in FILE_BY_ROLE.items()}
    problems: list[EvidenceProblem] = []
    parts: dict[str, Any] = {}
    for role, data in by_role.items():
        try:
            parts[role] = read_part(role, data)
        except EvidenceUnreadable as failure:
            problems.append(failure.problem)
    if problems:
        return problems
    return [
        *_list_manifest_problems(parts["manifest"]),
        *evidence_truth.check_parts(EvidenceParts(**parts)),
    ]


def _read_index(files: Files) -> ArtifactIndex:
    if evidence.INDEX not in files:
        raise EvidenceUnreadable(
            "index_missing", evidence.INDEX, "the folder has no artifact index"
        )
    try:
        index = codec.decode_as(files[evidence.INDEX], ArtifactIndex)
    except msgspec.ValidationError as failure:
        raise EvidenceUnreadable(
            "index_shape", evidence.INDEX, f"the artifact index has another shape: {failure}"
        ) from failure
    except (msgspec.DecodeError, RecursionError) as failure:
        raise EvidenceUnreadable(
            "index_not_json", evidence.INDEX, f"the artifact index is not JSON: {failure}"
        ) from failure
    if (index.format, index.format_version) != (
        evidence.FORMAT,
        evidence.FORMAT_VERSION,
    ):
        raise EvidenceUnreadable(
            "index_format",
            evidence.INDEX,
            f"the index is of format {index.format} {index.format_version}; this release checks "
            f"{evidence.FORMAT} {evidence.FORMAT_VERSION}",
        )
    return index


def _list_index_problems(files: Files, index: ArtifactIndex) -> Iterator[EvidenceProblem]:
    """Check what the index says of the folder as a whole."""
    if index.path_base != evidence.PATH_BASE:
        yield _build_index_problem(
            "path_base", f"paths are relative to {index.path_base!r}, not the folder"
        )
    if index.manifest != FILE_BY_ROLE["manifest"]:
        yield _build_index_problem(
            "manifest_pointer", f"the index names {index.manifest!r} as its manifest"
        )
    roles = [entry.role for entry in index.entries]
    for role in sorted(FILE_BY_ROLE.keys() - set(roles)):
        yield _build_index_problem("role_missing", f"the index lists no file for {role}")
    for role in sorted({role for role in roles if roles.count(role) > 1}):
        yield _build_index_problem(
            "role_twice", f"the index lists {role} {roles.count(role)} times"
        )
    for role in sorted(set(roles) - FILE_BY_ROLE.keys()):
        yield _build_index_problem(
            "role_unknown", f"the index lists a file for {role!r}, which is no part"
        )
    listed_paths = {entry.path for entry in index.entries} | {evidence.INDEX}
    for extra in sorted(files.keys() - listed_paths):
        yield EvidenceProblem(
            code="file_extra", artifact=extra, message=f"{extra} is not listed in the index"
        )


def _list_entry_problems(files: Files, index: ArtifactIndex) -> Iterator[EvidenceProblem]:
    for entry in index.entries:
        problem = _find_entry_problem(files, entry)
        if problem is not None:
            yield problem


def _find_entry_problem(files: Files, entry: IndexEntry) -> EvidenceProblem | None:
    file = files.get(entry.path)
    wrong: tuple[str, str] | None = None
    if entry.path.startswith(("/", "\\")) or entry.path[1:2] == ":":
        wrong = "path_absolute", f"the path {entry.path!r} is absolute: the folder cannot be moved"
    elif ".." in re.split(r"[/\\]", entry.path):
        wrong = "path_escapes", f"the path {entry.path!r} leads out of the folder"
    elif not _SHA256.fullmatch(entry.sha256):
        wrong = "digest_shape", f"the digest of {entry.path} is no lower-case SHA-256"
    elif file is None:
        wrong = "file_missing", f"{entry.path} is listed in the index and not there"
    elif len(file) != entry.bytes:
        wrong = "file_size", f"{entry.path} has {len(file)} bytes, the index says {entry.bytes}"
    elif codec.digest_hex(file) != entry.sha256:
        wrong = "file_digest", f"{entry.path} was changed: its SHA-256 is not the index's"
    elif entry.role in FILE_BY_ROLE and entry.path != FILE_BY_ROLE[entry.role]:
        wrong = "path_other", f"{entry.role} stands in {entry.path}, not {FILE_BY_ROLE[entry.role]}"
    if wrong is None:
        return None
    return EvidenceProblem(code=wrong[0], artifact=entry.path, message=wrong[1])


def _list_manifest_problems(manifest: EvidenceManifest) -> Iterator[EvidenceProblem]:
    if (manifest.format, manifest.format_version) != (evidence.FORMAT, evidence.FORMAT_VERSION):
        yield _build_manifest_problem(
            "manifest_format",
            f"the manifest is of format {manifest.format} {manifest.format_version}",
        )
    if manifest.artifact_index != evidence.INDEX:
        yield _build_manifest_problem(
            "index_pointer", f"the manifest names {manifest.artifact_index!r} as its index"
        )
    if manifest.created_at.tzinfo is None:
        yield _build_manifest_problem("time_zone", "the manifest's time has no zone")
    yield from _list_step_problems(manifest)


def _list_step_problems(manifest: EvidenceManifest) -> Iterator[EvidenceProblem]:
    names = [step.name for step in manifest.steps]
    missing = [name for name in evidence.STEPS if name not in names]
    unknown = [name for name in names if name not in evidence.STEPS]
    if missing:
        yield _build_manifest_problem(
            "step_missing", f"the manifest lacks the steps {', '.join(missing)}"
        )
    if unknown:
        yield _build_manifest_problem(
            "step_unknown", f"the manifest has steps {', '.join(unknown)}"
        )
    if not missing and not unknown and names != list(evidence.STEPS):
        yield _build_manifest_problem("step_order", f"the steps were taken as {', '.join(names)}")
    for step in manifest.steps:
        if step.started_at.tzinfo is None or step.ended_at.tzinfo is None:
            yield _build_manifest_problem(
                "step_zone", f"the times of step {step.name} have no zone"
            )
        elif step.ended_at < step.started_at:
            yield _build_manifest_problem("step_time", f"step {step.name} ended before it began")
        if step.outcome != evidence.PASSED:
            reason = step.detail or "it does not say why"
            yield _build_manifest_problem("step_failed", f"step {step.name} did not pass: {reason}")
    expected_outcome = (
        evidence.PASSED
        if all(step.outcome == evidence.PASSED for step in manifest.steps)
        else evidence.FAILED
    )
    if manifest.outcome != expected_outcome:
        yield _build_manifest_problem(
            "outcome", f"the manifest says {manifest.outcome!r}, its steps say {expected_outcome!r}"
        )


def _build_index_problem(code: str, message: str) -> EvidenceProblem:
    return EvidenceProblem(code=code, artifact=evidence.INDEX, message=message)


def _build_manifest_problem(code: str, message: str) -> EvidenceProblem:
    return EvidenceProblem(code=code, artifact=FILE_BY_ROLE["manifest"], message=message)
