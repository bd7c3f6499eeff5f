"""`pft floor`: the requests and rows of a playbook with nothing around them."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import aiohttp
import asyncpg

from noetl_pft.workload import queries
from noetl_pft.workload.model import PAGED, Scale

_PATIENCE_S = 8
_BATCH_ROWS = 1000
_PERSON = ("pcc_patient_id", "facility_mapping_id", "payload")
_PAGE = (*_PERSON, "page_number", "is_last_page")
_DETAIL = (*_PERSON, "assessment_id")

Row = tuple[Any, ...]
Item = TypeVar("Item")


class RawFloor:
    """One process, one HTTP client, one COPY connection; the first error ends it."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        db: "asyncpg.Connection[asyncpg.Record]",
        *,
        in_flight: int,
        frame_rows: int,
    ) -> None:
        self._http = http
        self._db = db
        self._copying = asyncio.Lock()
        self._in_flight = in_flight
        self._frame_rows = frame_rows
        self.sent = 0

    async def fetch_all(self, variant: str, scale: Scale) -> None:
        """Fetch and save everything, with the barriers of the playbook: C has none."""
        if variant == "c":
            await self._fetch_everybody(scale)
            return
        fetch = self._fetch_facility if variant == "a" else self._fetch_facility_in_batches
        for facility in range(1, scale.facilities + 1):
            await fetch(facility, scale.list_members(facility))

    async def _fetch_facility(self, facility: int, people: range) -> None:
        ids: list[tuple[int, str]] = []
        for kind in PAGED:

            async def fetch_pages(patient: int, kind: str = kind) -> list[Row]:
                return await self._fetch_pages(facility, patient, kind, ids)

            await self._run_phase(people, fetch_pages, f"patient_{kind}", _PAGE)

        async def fetch_person(patient: int) -> list[Row]:
            body = await self._get_json(f"/api/v1/patient/demographics?patientId={patient}")
            return [(patient, facility, json.dumps(body))]

        async def fetch_detail(item: tuple[int, str]) -> list[Row]:
            body = await self._get_json(f"/api/v1/mds/assessment/{item[1]}")
            return [(item[0], facility, json.dumps(body), item[1])]

        await self._run_phase(people, fetch_person, "patient_demographics", _PERSON)
        await self._run_phase(ids, fetch_detail, "mds_assessment_details", _DETAIL)

    async def _fetch_facility_in_batches(self, facility: int, people: range) -> None:
        ids: list[tuple[int, str]] = []
        frames = self._split_frames(people)
        for kind in PAGED:

            async def fetch_pages(frame: list[int], kind: str = kind) -> list[Row]:
                return await self._fetch_batch(facility, len(people), frame, kind, ids)

            await self._run_phase(frames, fetch_pages, f"patient_{kind}", _PAGE)

        async def fetch_persons(frame: list[int]) -> list[Row]:
            rows = await self._fetch_batch_rows("demographics", len(people), frame)
            return [(row["patient_id"], facility, json.dumps(row["payload"])) for row in rows]

        async def fetch_details(frame: list[tuple[int, str]]) -> list[Row]:
            owner = {name: patient for patient, name in frame}
            body = await self._get_json(f"/api/v1/pft/mds/details?assessmentIds={','.join(owner)}")
            details = ((row["assessment_id"], row["payload"]) for row in body["rows"])
            return [(owner[i], facility, json.dumps(payload), i) for i, payload in details]

        await self._run_phase(frames, fetch_persons, "patient_demographics", _PERSON)
        await self._run_phase(
            self._split_frames(ids), fetch_details, "mds_assessment_details", _DETAIL
        )

    def _split_frames(self, items: Sequence[Item]) -> list[list[Item]]:
        size = self._frame_rows
        return [list(items[at : at + size]) for at in range(0, len(items), size)]

    async def _fetch_everybody(self, scale: Scale) -> None:
        async with asyncio.TaskGroup() as group:
            for kind in PAGED:

                async def fetch_pages(patient: int, kind: str = kind) -> list[Row]:
                    return await self._fetch_pages(scale.get_facility(patient), patient, kind, [])

                people = range(1, scale.patient_count + 1)
                group.create_task(self._run_phase(people, fetch_pages, f"patient_{kind}", _PAGE))

    async def _fetch_batch(
        self, facility: int, patients: int, frame: list[int], kind: str, ids: list[tuple[int, str]]
    ) -> list[Row]:
        rows: list[Row] = []
        for row in await self._fetch_batch_rows(kind, patients, frame):
            patient, body = row["patient_id"], row["payload"]
            rows.append(
                (patient, facility, json.dumps(body), row["page_number"], row["is_last_page"])
            )
            for record in body["data"]:
                ids.extend((patient, i) for i in record.get("mdsAssessmentIds", ()))
        return rows

    async def _fetch_batch_rows(self, kind: str, patients: int, frame: list[int]) -> Any:
        people = ",".join(map(str, frame))
        body = await self._get_json(
            f"/api/v1/pft/batch/{kind}?patientIds={people}&patientsPerFacility={patients}"
        )
        return body["rows"]

    async def _fetch_pages(
        self, facility: int, patient: int, kind: str, ids: list[tuple[int, str]]
    ) -> list[Row]:
        rows: list[Row] = []
        page, more = 1, True
        while more:
            body = await self._get_json(
                f"/api/v1/patient/{kind}?patientId={patient}&page={page}&pageSize=1"
            )
            more = body["paging"]["hasMore"]
            rows.append((patient, facility, json.dumps(body), page, not more))
            for record in body["data"]:
                ids.extend((patient, i) for i in record.get("mdsAssessmentIds", ()))
            page += 1
        return rows

    async def _get_json(self, path: str) -> Any:
        self.sent += 1
        async with self._http.get(path) as answer:
            answer.raise_for_status()
            return json.loads(await answer.read())

    async def _run_phase(
        self,
        items: Iterable[Item],
        fetch: Callable[[Item], Awaitable[list[Row]]],
        table: str,
        columns: tuple[str, ...],
    ) -> None:
        """Fetch with a fixed number of tasks; the one that fills a batch copies it alone."""
        todo = iter(items)
        rows: list[Row] = []

        async def copy_rows(rows_min: int) -> None:
            async with self._copying:
                if len(rows) >= rows_min:
                    batch, rows[:] = rows[:], []
                    await self._db.copy_records_to_table(
                        f"pft_test_{table}", records=batch, columns=columns
                    )

        async def fetch_items() -> None:
            for item in todo:
                rows.extend(await fetch(item))
                if len(rows) >= _BATCH_ROWS:
                    await copy_rows(_BATCH_ROWS)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(fetch_items())
        await copy_rows(1)


async def measure_floor(
    *, api: str, dsn: str, variant: str, scale: Scale, in_flight: int, frame_rows: int
) -> dict[str, Any]:
    """Run the floor on emptied tables; return requests, seconds and rate."""
    connector = aiohttp.TCPConnector(limit=in_flight)
    patience = aiohttp.ClientTimeout(total=_PATIENCE_S)
    db = await asyncpg.connect(dsn, timeout=20)
    try:
        await db.execute("SET client_min_messages = warning")
        await db.execute(queries.load_statements("floor")["setup"])
        async with aiohttp.ClientSession(api, connector=connector, timeout=patience) as http:
            floor = RawFloor(http, db, in_flight=in_flight, frame_rows=frame_rows)
            started = time.perf_counter()
            await floor.fetch_all(variant, scale)
            seconds = time.perf_counter() - started
    finally:
        await db.close()
    return {
        "requests": floor.sent,
        "seconds": round(seconds, 3),
        "requests_per_second": round(floor.sent / seconds, 1),
    }


def add_floor_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pft floor`."""
    parser.add_argument("--variant", default="a", choices=["a", "b", "c"])
    parser.add_argument("--api", default="http://127.0.0.1:5555")
    parser.add_argument("--dsn", required=True, help="target database; its tables are emptied")
    parser.add_argument("--facilities", required=True, type=int)
    parser.add_argument("--patients", required=True, type=int)
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--frame-rows", type=int, default=50, help="rows of one request of b")


def run_floor(arguments: argparse.Namespace) -> int:
    """Measure and print one JSON line."""
    scale = Scale(arguments.facilities, arguments.patients)
    measuring = measure_floor(
        api=arguments.api,
        dsn=arguments.dsn,
        variant=arguments.variant,
        scale=scale,
        in_flight=arguments.in_flight,
        frame_rows=arguments.frame_rows,
    )
    try:
        measured = asyncio.run(measuring)
    except (OSError, asyncpg.PostgresError) as problem:
        sys.stderr.write(f"pft floor: {problem}\n")
        return 1
    except ExceptionGroup as problems:
        sys.stderr.write(f"pft floor: {problems.exceptions[0]!r}\n")
        return 1
    sys.stdout.write(json.dumps(measured) + "\n")
    return 0
