"""Collects what a dossier holds, from the planner's API."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from noetl_chassis.clock import Clock
from noetl_cli.audit import dossier
from noetl_cli.audit.dossier import DossierSeal, SealedEvent, SealedHead, ValuePool
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import client, folded_answer
from noetl_cli.planner.client import PlannerClient, PlannerRefusal
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_contracts.status import TERMINAL_EXECUTION
from noetl_replay.audit.chain import ChainExamination, ChainFinding

PRODUCER = "noetl evidence export"
EVENTS_MAX = 20_000
MOMENTS_MAX = 500
ITEMS_MAX = 5_000
PAYLOAD_BYTES = 16 * 1024 * 1024
LOG_BYTES_MAX = 8 * 1024 * 1024
# A result's preview, as a page shows it.
PREVIEW_BYTES_MAX = 256 * 1024
_PREVIEW_ROWS = 100
# Of steps that ran more than once: the moments at which their results are held, and their previews.
PAST_MOMENTS_MAX = 100
PAST_BYTES_MAX = 8 * 1024 * 1024
_EVENT_PAGE, _CONTENT_PAGE, _ITEM_PAGE = 1000, 200, 1000
# What the planner gives in one answer.
_ANSWER_BYTES_MAX = 8 * 1024 * 1024
_WHY = {
    "too_large": "larger than what is left of the bound",
    "sealed": "with a sealed value",
    "missing": "that the planner does not have",
    "corrupt": "whose kept bytes do not have their digest",
    "refused": "whose references were refused",
}
# What a reader of the pages may see: who exports may audit, and each role that may has the others.
_PERMISSIONS = ["audit", "read payloads", "see executions"]


class DossierCollector:
    """The parts of one run's dossier."""

    def __init__(
        self, planner: PlannerClient, execution_id: str, *, payload_bytes: int, clock: Clock
    ) -> None:
        self._planner = planner
        self._owner = client.get_owner(planner)
        self._query = {"execution_id": execution_id, **self._owner}
        self._run = f"/api/executions/{client.escape_segment(execution_id)}"
        self._payload_bytes = payload_bytes
        self._clock = clock
        self._left_out: list[str] = []
        self._answers: dict[str, Any] = {}
        self._runs = StepRuns()
        self.findings: list[ChainFinding] = []

    def collect_blocks(self) -> tuple[DossierSeal, dict[str, str]]:
        """Return the seal, and every part as it stands in the page; raises `CliError`."""
        latest = self._get_ended_run()
        version = latest["head_version"]
        events = self._fetch_events(version)
        payloads = self._fetch_payloads(version)
        logs = self._fetch_logs()
        moments = self._fetch_moments(latest)
        self._record_answers(latest)
        if self._planner.get(f"{self._run}/moment")["head_version"] != version:
            raise CliError(
                f"Execution {latest['execution_id']} got new events while it was exported.",
                way_out="Export it again.",
            )
        values = ([_seal_event(event) for event in events], payloads, logs, moments, self._answers)
        blocks = {
            name: dossier.encode_block(value)
            for name, value in zip(dossier.PARTS, values, strict=True)
        }
        return self._build_seal(latest, events[-1], blocks), blocks

    def _build_seal(
        self, latest: dict[str, Any], last: StoredEvent, blocks: dict[str, str]
    ) -> DossierSeal:
        who = self._planner.get(client.WHOAMI_PATH)
        return DossierSeal(
            format=dossier.FORMAT,
            format_version=dossier.FORMAT_VERSION,
            execution_id=latest["execution_id"],
            path=latest["path"],
            **self._owner,
            created_at=self._clock.now(),
            exported_by=str(who["name"]),
            producer=PRODUCER,
            permissions=_PERMISSIONS,
            head=SealedHead(version=last.stream_version, checksum=last.envelope_checksum),
            parts={name: dossier.seal_part(block) for name, block in blocks.items()},
            left_out=self._left_out,
        )

    def _get_ended_run(self) -> dict[str, Any]:
        latest: dict[str, Any] = self._planner.get(f"{self._run}/moment")
        execution_id, count = latest["execution_id"], latest["head_version"]
        if latest["status"] not in TERMINAL_EXECUTION:
            raise CliError(
                f"Execution {execution_id} is {latest['status']}: a dossier is of a run that has "
                "ended.",
                way_out=f"Wait for its end, or write a folder: noetl replay verify {execution_id}",
                exit_code=ExitCode.USAGE,
            )
        if count > EVENTS_MAX:
            raise CliError(
                f"Execution {execution_id} has {count:,} events; a dossier holds {EVENTS_MAX:,}.",
                way_out=f"Write a folder without --html: noetl replay verify {execution_id}",
                exit_code=ExitCode.USAGE,
            )
        return latest

    def _fetch_events(self, version: int) -> list[StoredEvent]:
        events: list[StoredEvent] = []
        try:
            for page in self._fetch_pages("/api/replay/events", limit=_EVENT_PAGE):
                events += [codec.convert_value(event, StoredEvent) for event in page["events"]]
        except msgspec.ValidationError as failure:
            raise client.build_not_a_planner_error(
                f"The answer has another shape ({failure})"
            ) from failure
        events = [event for event in events if event.stream_version <= version]
        if not events:
            raise CliError("The ledger has no event of this execution.")
        self.findings = _examine_chain(events, version)
        return events

    def _fetch_payloads(self, version: int) -> list[dict[str, Any]]:
        contents: dict[str, dict[str, Any]] = {}
        bytes_left, after = self._payload_bytes, 0
        while after < version:
            page = self._planner.get(
                "/api/replay/contents",
                **self._query,
                after=after,
                limit=min(_CONTENT_PAGE, version - after),
                bytes_max=min(bytes_left, _ANSWER_BYTES_MAX),
            )
            for content in page["contents"]:
                # A payload is held once, with the first event that names it.
                if content["sha256"] not in contents:
                    contents[content["sha256"]] = content
                    bytes_left -= content["bytes"] if content["content"] is not None else 0
            if page["next_after"] <= after:
                break
            after = page["next_after"]
        payloads = list(contents.values())
        self._note_left_out("payload", payloads, f"--payload-bytes {self._payload_bytes}")
        return payloads

    def _fetch_logs(self) -> list[dict[str, Any]]:
        contents: list[dict[str, Any]] = []
        bytes_left, after = LOG_BYTES_MAX, ""
        while True:
            page = self._planner.get(
                "/api/replay/log-chunks",
                **self._query,
                after=after,
                bytes_max=min(bytes_left, _ANSWER_BYTES_MAX),
            )
            contents += page["contents"]
            bytes_left -= sum(
                content["bytes"] for content in page["contents"] if content["content"] is not None
            )
            if not page["has_more"] or page["next_after"] <= after:
                break
            after = page["next_after"]
        self._note_left_out("chunk of logs", contents, f"{LOG_BYTES_MAX / 1e6:.1f} MB")
        return contents

    def _note_left_out(self, noun: str, contents: list[dict[str, Any]], bound: str) -> None:
        """Say in words how many contents are not there, by reason."""
        for reason in dict.fromkeys(content["left_out"] for content in contents):
            sizes = [content["bytes"] for content in contents if content["left_out"] == reason]
            if not reason:
                continue
            of_bound = f" ({bound})" if reason == "too_large" else ""
            plural = noun.replace("payload", "payloads").replace("chunk", "chunks")
            self._left_out.append(
                f"{len(sizes):,} {noun if len(sizes) == 1 else plural}, {sum(sizes):,} bytes: "
                f"{_WHY.get(reason, reason)}{of_bound}."
            )

    def _fetch_moments(self, latest: dict[str, Any]) -> dict[str, Any]:
        head = latest["head_version"]
        pool = ValuePool()
        moments = {}
        for version in choose_versions(head):
            moment = latest if version == head else self._fetch_moment(version)
            self._runs.note_moment(version, moment["steps"])
            moments[str(version)] = pool.add_fields(moment)
        if len(moments) < head:
            self._left_out.append(
                f"Moments: {len(moments):,} of {head:,} versions are held; the slider stops at "
                "these. All events are held."
            )
        return {"pool": pool.values, "moments": moments}

    def _fetch_moment(self, version: int) -> dict[str, Any]:
        """Ask until the moment is folded: the planner goes on from the one before."""
        answer: dict[str, Any] = self._fetch_folded(f"{self._run}/moment", version=version)
        return answer

    def _fetch_folded(self, path: str, **query: Any) -> Any:
        return folded_answer.fetch_folded(
            self._planner, path, show_progress=folded_answer.ignore_progress, **query
        )

    def _record_answers(self, latest: dict[str, Any]) -> None:
        execution_id, head = latest["execution_id"], latest["head_version"]
        self._record(
            f"/api/playbooks/{quote(latest['path'])}/plan", version=latest["playbook_version"]
        )
        self._record("/api/replay/density", **self._query, spans=120)
        self._record("/api/replay/diff", **self._query, before=head)
        self._record(f"{self._run}/checks")
        results = f"/api/result/{execution_id}"
        self._record(f"{results}/list")
        for result in self._answers[f"{results}/list"]["body"].get("results", []):
            path = self._build_result_path(result["step"])
            self._answers[unquote(path)] = self._fetch_preview(result["step"])
        past = {"results": self._fetch_past_results(f"{results}/list")}
        self._answers[f"{results}/past"] = {"status": 200, "body": past}
        for step in dict.fromkeys(loop["step"] for loop in latest["loops"]):
            self._record_items(step)

    def _record(self, path: str, **query: Any) -> None:
        """Ask once, and keep what the planner answered, a refusal too."""
        self._answers[unquote(path)] = self._fetch_answer(path, **query)

    def _fetch_answer(self, path: str, **query: Any) -> dict[str, Any]:
        try:
            return {"status": 200, "body": dict(self._fetch_folded(path, **query))}
        except PlannerRefusal as refusal:
            return {"status": refusal.status, "body": _show_refusal(refusal)}

    def _build_result_path(self, step: str) -> str:
        return f"{self._run}/result/{client.escape_segment(step)}"

    def _fetch_past_results(self, path: str) -> dict[str, list[dict[str, Any]]]:
        """Return the results that steps with several runs had, each from its version on.

        Before the first version that is held of a step, nothing is known of its results.
        """
        versions, steps = self._runs.list_changes(), self._runs.list_repeated_steps()
        if len(versions) > PAST_MOMENTS_MAX:
            self._left_out.append(
                f"Results of steps that ran again: those of {PAST_MOMENTS_MAX:,} of "
                f"{len(versions):,} moments are held, the latest."
            )
        past: dict[str, list[dict[str, Any]]] = {step: [] for step in steps}
        bytes_left = PAST_BYTES_MAX
        for version in versions[-PAST_MOMENTS_MAX:]:
            listed = self._fetch_answer(path, version=version)["body"].get("results", [])
            outlines = {result["step"]: result for result in listed}
            for step in steps:
                outline = outlines.get(step)
                if past[step] and past[step][-1]["result"] == outline:
                    continue
                preview = None
                if outline is not None:
                    bytes_max = min(PREVIEW_BYTES_MAX, bytes_left)
                    preview = self._fetch_preview(step, bytes_max=bytes_max, version=version)
                    bytes_left = max(0, bytes_left - len(codec.encode_json(preview)))
                past[step].append({"version": version, "result": outline, "preview": preview})
        return past

    def _fetch_preview(
        self, step: str, *, bytes_max: int = PREVIEW_BYTES_MAX, **query: Any
    ) -> dict[str, Any]:
        """Return the answer to a page that shows a result, a refusal where it is too large."""
        answer = self._fetch_answer(self._build_result_path(step), limit=_PREVIEW_ROWS, **query)
        size = len(codec.encode_json(answer))
        if size <= bytes_max:
            return answer
        then = f" at version {query['version']}" if query else ""
        self._left_out.append(f"The preview of the result of step {step!r}{then}: {size:,} bytes.")
        body = {
            "code": "not_in_dossier",
            "detail": f"The preview of this result has {size:,} bytes, more than a dossier takes.",
            "hint": f"noetl result {self._query['execution_id']} {step}",
        }
        return {"status": 413, "body": body}

    def _record_items(self, step: str) -> None:
        """Keep the items of a loop, all pages as one."""
        path = f"{self._run}/items/{client.escape_segment(step)}"
        items: list[Any] = []
        after = ""
        while True:
            self._record(path, after=after, limit=_ITEM_PAGE)
            answer = self._answers[unquote(path)]
            body = answer["body"]
            items += body.get("items", [])
            after = body.get("next_after", "")
            if not body.get("has_more") or len(items) >= ITEMS_MAX:
                break
        if "items" not in body:
            return
        if body["has_more"]:
            note = (
                f"Items of loop {step!r}: the first {len(items):,} are held; all of them: "
                f"noetl items {self._query['execution_id']} {step} --all"
            )
            self._left_out.append(note)
            body["notes"] = [*body.get("notes", []), note]
        body["items"] = items

    def _fetch_pages(self, path: str, *, limit: int) -> Iterator[Any]:
        after = 0
        while True:
            page = self._planner.get(path, **self._query, after=after, limit=limit)
            yield page
            if not page["has_more"] or page["next_after"] <= after:
                return
            after = page["next_after"]


class StepRuns:
    """The steps of a run that ran more than once, and the moments at which one of them changed."""

    def __init__(self) -> None:
        self._state_by_step: dict[str, tuple[Any, ...]] = {}
        self._versions_by_step: dict[str, list[int]] = {}

    def note_moment(self, version: int, steps: list[dict[str, Any]]) -> None:
        """Take the steps of the next moment that is held."""
        for step in steps:
            state = (step["runs"], step["status"], step["ended_at"])
            if self._state_by_step.get(step["step"]) != state:
                self._state_by_step[step["step"]] = state
                self._versions_by_step.setdefault(step["step"], []).append(version)

    def list_repeated_steps(self) -> list[str]:
        """List the steps with several runs, in the order in which they began first."""
        return [step for step, (runs, *_) in self._state_by_step.items() if runs > 1]

    def list_changes(self) -> list[int]:
        """List the versions at which a step of these began or ended a run, in order."""
        repeated = self.list_repeated_steps()
        return sorted({version for step in repeated for version in self._versions_by_step[step]})


def choose_versions(head: int) -> list[int]:
    """Choose the versions whose moments are held: all, or so many spread evenly with both ends."""
    if head <= MOMENTS_MAX:
        return list(range(1, head + 1))
    return sorted({1 + place * (head - 1) // (MOMENTS_MAX - 1) for place in range(MOMENTS_MAX)})


def _examine_chain(events: list[StoredEvent], version: int) -> list[ChainFinding]:
    last = events[-1]
    examination = ChainExamination()
    examination.feed_events(events)
    return examination.finish_examination(
        HistoryHead(
            execution_id=ExecutionId(last.execution_id),
            version=version,
            checksum=last.envelope_checksum,
        )
    )


def _seal_event(event: StoredEvent) -> SealedEvent:
    return SealedEvent(
        text=stored_event.encode_covered_fields(event).decode(),
        checksum=event.envelope_checksum,
        concealed=event.concealed,
        altered=event.altered,
    )


def _show_refusal(refusal: PlannerRefusal) -> dict[str, str]:
    return {"code": refusal.code, "detail": refusal.message, "hint": refusal.way_out}
