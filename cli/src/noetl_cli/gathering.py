"""Gather the evidence of an execution from a planner, step by step, into the files of a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from noetl_chassis.clock import Clock
from noetl_cli.client import Client
from noetl_cli.failures import CliError
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import Head
from noetl_contracts.stored import StoredEvent
from noetl_replay import evidence
from noetl_replay.evidence import FILE_BY_ROLE, LiveRows, PayloadCheck, Scope, Step

PRODUCER = "noetl replay verify"
PAGE_EVENTS = 1000


class Gathering:
    """The files so far, and how each came to be."""

    def __init__(self, planner: Client, scope: Scope, clock: Clock) -> None:
        self._planner = planner
        self._asked = codec.builtins(scope)
        self._scope = scope
        self._clock = clock
        self._steps: list[Step] = []
        self._outcome, self._detail = evidence.PASSED, ""
        self._files: dict[str, bytes] = {}

    def gather(self) -> dict[str, bytes]:
        """Return every file of the folder; a contradiction is evidence too, and is written down.

        The live rows decide about the position: what they hold is compared with a replay up to it.
        """
        live = codec.convert(dict(self._planner.get("/api/replay/live", **self._asked)), LiveRows)
        if live.version == 0:
            raise CliError(
                f"Execution {live.execution_id} has no live rows yet.",
                way_out="Ask again once a projector has seen it: noetl status",
            )
        with self._step("events"):
            events = self._events(live.version)
            self._keep("events", evidence.lines(events))
        with self._step("replay"):
            replayed = self._planner.get(
                "/api/replay/state", **self._asked, as_of_position=live.version
            )
            self._keep("replay", codec.encode(dict(replayed)))
        with self._step("live_rows"):
            self._keep("live_rows", codec.encode(live))
        with self._step("checksums"):
            sums = evidence.checksums(live, replayed)
            self._keep("checksums", codec.encode(sums))
            if not sums.is_equal:
                self._fail("the live rows are not what the history folds to")
        with self._step("payloads"):
            report = evidence.summarize(self._payloads(live.version))
            self._keep("payloads", codec.encode(report))
            if not report.summary.all_resolved:
                self._fail(f"{report.summary.unresolved} payloads are missing or damaged")
        with self._step("artifact_index"):
            last = events[-1]
        return self._packed(
            Head(
                execution_id=ExecutionId(live.execution_id),
                version=live.version,
                checksum=last.envelope_checksum,
            )
        )

    def _packed(self, head: Head) -> dict[str, bytes]:
        manifest = evidence.manifest(
            scope=self._scope,
            head=head,
            producer=PRODUCER,
            created_at=self._clock.now(),
            steps=self._steps,
        )
        self._keep("manifest", codec.encode(manifest))
        return {**self._files, evidence.INDEX: codec.encode(evidence.index(self._files))}

    def _events(self, until: int) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        for page in self._pages("/api/replay/events", until):
            found += [codec.convert(one, StoredEvent) for one in page["events"]]
        if not found:
            raise CliError("The ledger has no event of this execution.")
        return found

    def _payloads(self, until: int) -> list[PayloadCheck]:
        found: dict[str, PayloadCheck] = {}
        for page in self._pages("/api/replay/payloads", until):
            for one in page["payloads"]:
                found[one["sha256"]] = codec.convert(one, PayloadCheck)
        return list(found.values())

    def _pages(self, path: str, until: int) -> Iterator[Any]:
        after = 0
        while after < until:
            limit = min(PAGE_EVENTS, until - after)
            page = self._planner.get(path, **self._asked, after=after, limit=limit)
            yield page
            if page["next_after"] <= after:
                return
            after = page["next_after"]

    def _keep(self, role: str, data: bytes) -> None:
        self._files[FILE_BY_ROLE[role]] = data

    def _fail(self, detail: str) -> None:
        self._outcome, self._detail = evidence.FAILED, detail

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        started_at = self._clock.now()
        self._outcome, self._detail = evidence.PASSED, ""
        yield
        self._steps.append(
            Step(
                name=name,
                started_at=started_at,
                ended_at=max(self._clock.now(), started_at),
                outcome=self._outcome,
                detail=self._detail,
            )
        )
