"""A stand-in for the engine: runs the playbook's own statements and writes the events of a run."""

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from subprocess import PIPE, Popen
from sys import executable
from typing import Any

import aiohttp
import asyncpg
import yaml
from jinja2 import StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

EXECUTION = "4611686018427387904"
EVENT_TABLE = """
CREATE SCHEMA noetl;
CREATE TABLE noetl.event (
  event_id bigint PRIMARY KEY, execution_id bigint, stream_version bigint, event_type text, node_name text,
  node_id text, status text, stage_id bigint, frame_id bigint, command_id bigint, context jsonb, result jsonb,
  error jsonb, created_at timestamptz NOT NULL DEFAULT now());
"""  # noqa: E501  # one line per idea
_WHOLE = re.compile(r"\s*\{\{((?:(?!\}\}).)*)\}\}\s*", re.DOTALL)
_NAMED = re.compile(r"(?<!:):([a-z_]+)")


class Forgiving(Undefined):
    """Undefined as the language has it: attributes of it are undefined again."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Forgiving(name=name)

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    __hash__ = Undefined.__hash__


def _sql_literal(value: Any) -> str:
    assert isinstance(value, str), value
    return "'" + value.replace("'", "''") + "'"


def environment(undefined: type[Undefined]) -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(undefined=undefined, keep_trailing_newline=True)
    env.filters["sql_literal"] = _sql_literal
    env.filters["tojson"] = json.dumps
    return env


STRICT = environment(StrictUndefined)
CONDITIONS = environment(Forgiving)


@cache
def _expression(env: Any, text: str) -> Callable[..., Any]:
    compiled: Callable[..., Any] = env.compile_expression(text, undefined_to_none=False)
    return compiled


def render(value: Any, names: Mapping[str, Any], env: Any = STRICT) -> Any:
    """Render as the language says: whole-value templates natively, others as text."""
    match value:
        case str() if whole := _WHOLE.fullmatch(value):
            return _expression(env, whole[1])(**names)
        case str() if "{" in value:
            return env.from_string(value).render(**names)
        case dict():
            return {key: render(item, names, env) for key, item in value.items()}
        case list():
            return [render(item, names, env) for item in value]
        case _:
            return value


def bind(text: str, params: dict[str, Any]) -> tuple[str, list[Any]]:
    """Turn `:name` into `$n`."""
    order = sorted(params)
    unknown = set(_NAMED.findall(text)) ^ set(order)
    assert not unknown, f"parameters and statement disagree about {unknown}"
    return _NAMED.sub(lambda m: f"${order.index(m[1]) + 1}", text), [params[n] for n in order]


def load_playbook(variant: str = "a") -> dict[str, Any]:
    source = files("noetl_pft") / "playbooks" / f"pft_{variant}.yaml"
    document: dict[str, Any] = yaml.safe_load(source.read_text())
    return document


@dataclass
class EventLog:
    """Events in order, written to the table at the end."""

    execution: int
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, kind: str, step: str | None = None, **fields: Any) -> None:
        version = len(self.rows) + 1
        context = fields.pop("context", {})
        ids = (fields.get("stage_id"), fields.get("frame_id"), fields.get("command_id"))
        body = json.dumps(context)
        result = json.dumps({"ref": f"noetl://{version}"}) if kind == "call.done" else None
        self.rows.append(
            (10_000 + version, self.execution, version, kind, step, *ids, body, result)
        )

    async def write(self, dsn: str) -> None:
        db = await asyncpg.connect(dsn)
        await db.execute(EVENT_TABLE)
        columns = "event_id execution_id stream_version event_type node_name stage_id frame_id"
        await db.copy_records_to_table(
            "event",
            schema_name="noetl",
            records=self.rows,
            columns=[*columns.split(), "command_id", "context", "result"],
        )
        await db.close()


class Driver:
    """Runs a PFT playbook without an engine: no leases, no retries, no faults."""

    def __init__(
        self, *, dsn: str, workload: dict[str, Any], variant: str = "a", slots: int = 4
    ) -> None:
        document = load_playbook(variant)
        self.steps = {step["step"]: step for step in document["workflow"]}
        self.names: dict[str, Any] = {
            "workload": document["workload"] | workload,
            "execution_id": EXECUTION,
            "ctx": {},
        }
        self.log = EventLog(int(EXECUTION))
        self.slots = slots
        self.ids = itertools.count(700)
        self.dsn = dsn

    async def run(self) -> None:
        limit = aiohttp.TCPConnector(limit=64)
        async with (
            asyncpg.create_pool(self.dsn, min_size=1, max_size=8) as self.pool,
            aiohttp.ClientSession(connector=limit) as self.http,
        ):
            self.log.add("playbook.initialized")
            step: str | None = "start"
            while step is not None:
                step = await self.enter(step)
            self.log.add("playbook.completed")

    async def enter(self, name: str) -> str | None:
        step = self.steps[name]
        self.log.add("step.enter", name)
        if "loop" in step:
            await self.drain(name, step)
        else:
            self.log.add("command.issued", name)
            self.names[name] = await self.task(step["tool"], self.names)
            self.log.add("call.done", name)
            for target, value in step.get("set", {}).items():
                self.names["ctx"][target.removeprefix("ctx.")] = render(value, self.names)
        self.log.add("step.exit", name)
        for arc in step.get("next", {}).get("arcs", ()):
            if "when" not in arc or render(arc["when"], self.names):
                return str(arc["step"])
        return None

    async def task(self, task: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
        names = names | {"_attempt": 1, "input": render(task.get("input", {}), names)}
        match task["kind"]:
            case "postgres":
                assert render(task["auth"], names) == "pg_pft"
                text = render(task["query"], names)
                values: list[Any] = []
                if "params" in task:
                    text, values = bind(text, render(task["params"], names))
                # What is prepared is one statement; those after it in the playbook have no values.
                first, *further = text.split(";\n") if values else [text]
                rows = await self.pool.fetch(first, *values)
                for statement in further:
                    await self.pool.execute(statement)
                return {"rows": [dict(row) for row in rows]}
            case "http":
                assert isinstance(render(task["headers"], names)["X-PFT-Attempt"], str)
                return await self.get(task, names)
            case _:
                return {}

    async def get(self, task: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
        page = names["iter"].get("page", 1)
        key = f"{names['step']}/{names['frame']['id']}/{names['row']}/{page}"
        headers = render(task["headers"], names) | {"Idempotency-Key": key}
        params = render(task.get("params", {}), names)
        async with self.http.get(
            render(task["url"], names), params=params, headers=headers
        ) as answer:
            assert answer.status == 200, await answer.text()
            return {"body": await answer.json()}

    async def drain(self, name: str, step: dict[str, Any]) -> None:
        stage = next(self.ids)
        self.log.add("loop.started", name, stage_id=stage)
        self.log.add("stage.opened", name, stage_id=stage)
        async with asyncio.TaskGroup() as group:
            for slot in range(self.slots):
                group.create_task(self.slot(name, step, stage, slot))
        self.log.add("stage.closed", name, stage_id=stage)
        self.log.add("loop.done", name, stage_id=stage)

    async def claim(self, step: dict[str, Any], frame: str, rows: int) -> list[dict[str, Any]]:
        names = self.names | {"__frame_id": frame, "__frame_max_rows": rows}
        text = render(step["loop"]["cursor"]["claim"], names)
        return [dict(row) for row in await self.pool.fetch(text)]

    async def slot(self, name: str, step: dict[str, Any], stage: int, slot: int) -> None:
        most = render(step["loop"]["spec"]["frame"]["max_rows"], self.names)
        for index in itertools.count():
            frame = stage * 1_000_000 + slot * 1000 + index
            rows = await self.claim(step, str(frame), most)
            if not rows:
                return
            assert {row["frame_id"] for row in rows} == {str(frame)}
            shape = {"attempt": 1, "slot": slot, "frame_index": index, "row_count": len(rows)}
            where = {"stage_id": stage, "frame_id": frame, "command_id": next(self.ids)}
            for kind in ("frame.dispatched", "frame.started"):
                self.log.add(kind, name, **where, context=shape)
            await self.body(name, step, {"id": frame, "rows": rows})
            self.log.add("frame.committed", name, **where, context=shape)

    async def body(self, name: str, step: dict[str, Any], frame: dict[str, Any]) -> None:
        gate, rows = asyncio.Semaphore(8), frame["rows"]
        if step["loop"]["spec"]["frame"]["process"] == "frame":
            await self.item(name, step, frame, {"row": "all", "value": rows}, gate)
            return
        async with asyncio.TaskGroup() as group:
            for row in rows:
                item = {"row": row["frame_row"], "value": row}
                group.create_task(self.item(name, step, frame, item, gate))

    async def item(
        self,
        name: str,
        step: dict[str, Any],
        frame: dict[str, Any],
        item: dict[str, Any],
        gate: asyncio.Semaphore,
    ) -> None:
        scratch: dict[str, Any] = {step["loop"]["iterator"]: item["value"]}
        names = self.names | {"iter": scratch, "frame": frame, "step": name, "row": item["row"]}
        tasks = step["tool"]
        position = 0
        async with gate:
            while position < len(tasks):
                task = tasks[position]
                result = await self.task(task, names)
                names[task["name"]] = result
                action = self.action(task, names, result)
                scratch.update(
                    (target.removeprefix("iter."), render(value, names))
                    for target, value in action.get("set", {}).items()
                )
                match action["do"]:
                    case "continue":
                        position += 1
                    case "jump":
                        position = [t["name"] for t in tasks].index(action["to"])
                    case "break":
                        return
                    case other:
                        raise AssertionError(f"{other}: {action}")

    def action(self, task: dict[str, Any], names: dict[str, Any], result: Any) -> dict[str, Any]:
        rules = task.get("spec", {}).get("policy", {}).get("rules", ())
        output = {"status": "ok", "data": result}
        for rule in rules:
            if "else" in rule:
                return dict(rule["else"]["then"])
            if render(rule["when"], names | {"output": output, "_attempt": 1}, CONDITIONS):
                return dict(rule["then"])
        return {"do": "continue"}


@contextmanager
def fixture_server(folder: Path, *options: str) -> Iterator[dict[str, Any]]:
    """A started fixture: its addresses and its ledger folder."""
    command = [executable, "-m", "noetl_pft", "serve", "--port", "0", "--control-port", "0"]
    command += ["--ledger-dir", str(folder), *options]
    with Popen(command, stdout=PIPE) as process:  # noqa: S603  # our own program
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the fixture did not start"
            yield json.loads(line)
        finally:
            process.terminate()
            process.wait(60)
