"""PFT A by its own statements, as its playbook has them, and by nothing else."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import msgspec
import yaml
from tests.support.pft import PLAYBOOKS

from noetl_playbook.templates import expressions

SLOTS, FRAME_ROWS, LANES = 8, 50, 16
TOGETHER_MAX = 64
PAGED = ("assessments", "conditions", "medications", "vital_signs")
_NAMED = re.compile(r":(\w+)")

Row = dict[str, Any]
Get = Callable[[str], Awaitable[Any]]
# The parameters of a save for each answer to a row's requests, one after another.
Fetch = Callable[[Row], Any]


class Statement:
    """A statement with named parameters; runs that come together are committed together."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", text: str) -> None:
        self._pool = pool
        self._names = list(dict.fromkeys(_NAMED.findall(text)))
        place = {name: f"${number}" for number, name in enumerate(self._names, 1)}
        self._text = _NAMED.sub(lambda found: place[found[1]], text)
        self._waiting: list[tuple[list[Any], asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def run(self, row: Row) -> None:
        """Return when it is committed."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(([row[name] for name in self._names], done))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        await done

    async def _send(self) -> None:
        while self._waiting:
            batch = self._waiting[:TOGETHER_MAX]
            del self._waiting[:TOGETHER_MAX]
            await self._pool.executemany(self._text, [values for values, _ in batch])
            for _, done in batch:
                done.set_result(None)


class Facilities:
    """Runs one facility after another, with the playbook's barriers between kinds."""

    def __init__(
        self, get: Get, pool: "asyncpg.Pool[asyncpg.Record]", *, api: str, patients: int
    ) -> None:
        playbook = yaml.safe_load((PLAYBOOKS / "pft_a.yaml").read_text())
        self._steps = {step["step"]: step for step in playbook["workflow"]}
        self._workload = playbook["workload"] | {"patients": patients, "run_nonce": "unaided"}
        self._get, self._pool, self._api = get, pool, api
        self._run = os.urandom(8).hex()
        self._frames = 0

    async def begin(self, facilities: int) -> None:
        """Make the tables, emptied."""
        self._workload["facilities"] = facilities
        await self._pool.execute(self._rendered(self._steps["start"]["tool"]["query"]))

    async def run(self, facility: int) -> None:
        """Fetch and save all of a facility."""
        organisation = f"org-{facility}"
        patients = self._workload["patients"]
        about = {"execution": self._run, "facility": facility}
        await self._ask(
            "setup_facility_work", **about, patients=patients, organisation=organisation
        )
        for kind in PAGED:
            await self._stage(f"fetch_{kind}", facility, self._pages_of(kind))
        await self._stage("fetch_demographics", facility, self._person)
        await self._ask("prepare_mds_work", **about)
        await self._stage("fetch_mds_details", facility, self._detail)

    async def _ask(self, step: str, **given: Any) -> None:
        for text in self._steps[step]["tool"]["query"].split(";"):
            await Statement(self._pool, text).run(given)

    async def _stage(self, step: str, facility: int, fetch: Fetch) -> None:
        definition = self._steps[step]
        saves = [task for task in definition["tool"] if task.get("name") == "save"]
        save = Statement(self._pool, saves[0]["query"])
        claim = definition["loop"]["cursor"]["claim"]
        async with asyncio.TaskGroup() as slots:
            for _ in range(SLOTS):
                slots.create_task(self._slot(claim, facility, fetch, save))

    async def _slot(self, claim: str, facility: int, fetch: Fetch, save: Statement) -> None:
        while True:
            self._frames += 1
            frame = {"frame": str(self._frames), "execution": self._run, "attempt": 1}
            text = self._rendered(
                claim,
                ctx={"facility_mapping_id": facility},
                __frame_id=frame["frame"],
                __frame_max_rows=FRAME_ROWS,
            )
            claimed = [dict(row) for row in await self._pool.fetch(text)]
            if not claimed:
                return
            todo = iter(claimed)
            async with asyncio.TaskGroup() as lanes:
                for _ in range(LANES):
                    lanes.create_task(_lane(todo, frame, fetch, save))

    def _rendered(self, text: str, **names: Any) -> str:
        known_names = {"execution_id": self._run, "workload": self._workload, **names}
        rendered: str = expressions.render_value(text, known_names)
        return rendered

    def _pages_of(self, kind: str) -> Fetch:
        async def pages(row: Row) -> Any:
            page, has_more = 1, True
            while has_more:
                patient = row["patient_id"]
                query = f"patientId={patient}&page={page}&pageSize=1"
                body = await self._get(f"{self._api}/api/v1/patient/{kind}?{query}")
                has_more = body["paging"]["hasMore"]
                yield {"patient": patient, "page": page, "last": not has_more, "body": _text(body)}
                page += 1

        return pages

    async def _person(self, row: Row) -> Any:
        patient = row["patient_id"]
        body = await self._get(f"{self._api}/api/v1/patient/demographics?patientId={patient}")
        yield {"patient": patient, "body": _text(body)}

    async def _detail(self, row: Row) -> Any:
        name = row["assessment_id"]
        body = await self._get(f"{self._api}/api/v1/mds/assessment/{name}")
        yield {"patient": row["pcc_patient_id"], "assessment": name, "body": _text(body)}


async def _lane(todo: Iterator[Row], frame: Row, fetch: Fetch, save: Statement) -> None:
    for row in todo:
        async for values in fetch(row):
            await save.run({**frame, "facility": row["facility_mapping_id"], **values})


def _text(body: Any) -> str:
    return msgspec.json.encode(body).decode()
