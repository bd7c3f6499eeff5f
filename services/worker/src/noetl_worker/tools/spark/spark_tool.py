"""The `spark` tool: SQL or a function over named inputs, its rows left in the payload store."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from noetl_chassis import identity
from noetl_contracts import codec, locators, spread_table
from noetl_contracts.errors import ErrorObject
from noetl_contracts.log_chunks import NOTICE
from noetl_contracts.payloads import INLINE_BYTES_MAX, RESULT_INLINE_BYTES_MAX, PayloadRef
from noetl_contracts.spread_table import SpreadTable
from noetl_playbook.model import coercion
from noetl_playbook.views.results import PipelineResult, StoredResult, TaskResult
from noetl_storage.arrow import result_values
from noetl_storage.arrow.encoding import PayloadUnreadable
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.result_storage import wants_handle
from noetl_worker.payloads.result_store import ResultStore
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.spark import job_loader
from noetl_worker.spark.code_call import CodeFailed
from noetl_worker.spark.driver_output import DriverOutput, shared_lines
from noetl_worker.spark.session import SharedSparkSession
from noetl_worker.spark.tables import part_writer
from noetl_worker.spark.tables.part_writer import Format, PartManifest, WritePlan
from noetl_worker.spark.tables.store_access import StoreAddress
from noetl_worker.spark.tables.stream_plans import StreamPlan, StreamWatch
from noetl_worker.spark.task_request import CONF_ALLOWED, SparkRequest, SparkResult
from noetl_worker.sql import lexer
from noetl_worker.tools.calls.call import Call, Outcome, RowSink
from noetl_worker.tools.calls.call_datasets import parse_expected
from noetl_worker.tools.calls.references import ReferenceReader
from noetl_worker.tools.python.requirements import parse_requirements
from noetl_worker.tools.scripts.script_loader import ScriptLoader
from noetl_worker.tools.spark import event_logs, job_grants, plan_texts, stream_task
from noetl_worker.tools.spark.code_process import SparkCode
from noetl_worker.tools.spark.grant_maker import GrantMaker, GrantNeed
from noetl_worker.tools.spark.spark_inputs import SparkInputReader
from noetl_worker.tools.spark.stream_task import StreamTables
from noetl_worker.tools.tables import dataset_results

ALLOWED_SETTING = "NOETL_WORKER_SPARK_CODE_ALLOWED"
_SESSION_KEYS = ("master", "remote", "app_name", "conf")
# PySpark reports every failed query, with its text, to a logger of its own.
_QUERY_LOGGER = "SQLQueryContextLogger"


class SparkLimits(Struct, frozen=True, kw_only=True):
    """What a task may do; `store_url` is how executors find the payload store."""

    store_url: str
    master: str
    # The master without what may be a token.
    shown_master: str
    is_code_allowed: bool = False
    result_bytes_max: int = 256 * 1024**2


class SparkTool:
    """Runs tasks as jobs of the worker's one session."""

    def __init__(
        self,
        *,
        spark_session: SharedSparkSession,
        references_: ReferenceReader,
        inputs: SparkInputReader,
        scripts: ScriptLoader,
        tables: StreamTables,
        limits: SparkLimits,
        code: SparkCode,
        grants: GrantMaker,
    ) -> None:
        self._spark_session = spark_session
        self._references = references_
        self._inputs = inputs
        self._scripts = scripts
        self._tables = tables
        self._limits = limits
        self._code = code
        self._grants = grants

    @property
    def input_reader(self) -> SparkInputReader:
        """Return what finds the rows of inputs."""
        return self._inputs

    def build_store_address(self, call: Call) -> StoreAddress:
        """Say where the call's organization keeps its payloads."""
        return StoreAddress(
            url=self._limits.store_url,
            tenant_id=call.site.tenant_id,
            organization_id=call.site.organization_id,
        )

    @asynccontextmanager
    async def hold_home(
        self, needs: Sequence[GrantNeed], call: Call
    ) -> AsyncIterator[StoreAddress]:
        """Hold the address of the call's store with what executors open; raises `ToolFailure`."""
        async with self._grants.hold_grant(needs, call.site) as grant:
            yield self.build_store_address(call).with_grant(grant)

    async def run(self, call: Call) -> Outcome:
        """Run one attempt; when it is called off, its Spark job is cancelled."""
        try:
            async with task_timeout(call.timeout.total):
                return Outcome(data=await self._run_call(call))
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except TimeoutError:
            text = f"the job did not end within {call.timeout.total:g} s and was cancelled"
            return Outcome(error=build_error("timeout", text, source="spark"))

    async def _run_call(self, call: Call) -> Any:
        ask = await self._build_request(call)
        kept = ask.kept_events
        if kept is None:
            return await self._answer_request(ask, call)
        payloads = self._references.get_payloads(call.site)
        try:
            raw = await self._answer_request(ask, call)
        except ToolFailure as problem:
            details = await event_logs.store_event_log(kept, payloads, self._code.mask)
            error = problem.error
            shown = structs.replace(error, details={**(error.details or {}), **details})
            raise ToolFailure(shown) from problem
        about = await event_logs.store_event_log(kept, payloads, self._code.mask)
        return {**raw, **about} if isinstance(raw, dict) else raw

    async def _answer_request(self, ask: SparkRequest, call: Call) -> Any:
        output = DriverOutput(call.log, asyncio.get_running_loop())
        try:
            needs = job_grants.list_request_needs(ask)
            async with self._grants.hold_grant(needs, call.site) as grant:
                granted = job_grants.with_grant(ask, grant)
                with shared_lines.handed_to(output):
                    result: SparkResult = await self._run_request(granted, call, output)
        finally:
            output.close()
        result = plan_texts.mask_plans(result, self._code.mask)
        if result.stream is not None:
            return _add_findings(stream_task.build_streamed(result, ask), result)
        if result.written is not None:
            return _build_written(result, ask)
        if result.named:
            return await self._build_named(result, ask, call)
        if result.manifests is None:
            return result.value
        return _add_findings(await self._build_tabular(result, ask, call), result)

    async def _run_request(self, ask: SparkRequest, call: Call, output: DriverOutput) -> Any:
        """Run a request in the session; its code, if it has some, in a process of its own."""
        if ask.stream is not None:
            return await self._run_stream(ask, call)
        if ask.code is None:
            return await self.run_job(
                lambda session: job_loader.load_jobs().run(session, ask, output), call
            )
        async with (
            self._hold_packages(call) as packages,
            self._code.processes.hold_runner(
                call, master=self._limits.master, packages=packages
            ) as (
                runner,
                process,
            ),
        ):
            return await self.run_job(
                lambda session: job_loader.load_jobs().run(session, ask, output, runner),
                call,
                end=process.kill_process,
            )

    async def _run_stream(self, ask: SparkRequest, call: Call) -> Any:
        """Follow an input that arrives; when the call is ended, its query ends with it."""
        stream_task.check_request(ask)
        watch = StreamWatch()
        return await self.run_job(
            lambda session: job_loader.load_streams().run_stream(session, ask, watch),
            structs.replace(call, tell_progress=stream_task.tell_with_stream(call, watch)),
            end=watch.stop_stream,
        )

    def _hold_packages(self, call: Call) -> AbstractAsyncContextManager[Path | None]:
        """Hold the folder of the packages that a call requires; raises `ToolFailure`."""
        requirements = parse_requirements(call.fields, self._code.environments.install_policy)
        if requirements.lines and not self._limits.master.startswith("local"):
            text = (
                "field 'requirements': executors of another machine do not see packages that are "
                f"installed here, and Spark runs at {self._limits.shown_master}: install them in "
                "the Python of its executors, and leave 'requirements' out"
            )
            raise ToolFailure(build_error("config", text, source="spark"))
        owner = (call.site.tenant_id, call.site.organization_id)
        return self._code.environments.hold_environment(
            requirements, owner, partial(call.log.add_line, NOTICE)
        )

    async def run_job(self, work: Any, call: Call, *, end: Callable[[], None] | None = None) -> Any:
        """Run a call's job in the session; raises `ToolFailure` that says what Spark refused."""
        logging.getLogger(_QUERY_LOGGER).disabled = True
        try:
            return await self._spark_session.run_job(
                work, name=call.site.step, tell_progress=call.tell_progress, end=end
            )
        except CodeFailed as problem:
            error = self._code.processes.explain_answer(problem.answer, self._code.mask)
            assert error is not None, "an answer that failed says of what"
            raise ToolFailure(error) from problem
        except Exception as problem:
            code = call.fields.get("code")
            error = job_loader.explain_failure(problem, code if isinstance(code, str) else None)
            if error is None:
                raise
            raise ToolFailure(error) from problem

    async def _build_request(self, call: Call) -> SparkRequest:
        fields = call.fields
        code, statements = await self._load_source(call)
        home = self.build_store_address(call)
        stream = await self._describe_stream(call, home)
        inputs: Any = fields.get("inputs")
        if stream is not None:
            inputs = {name: item for name, item in inputs.items() if str(name) != stream.name}
        # What a task of mode batch may not write is refused with its dataset.
        has_table = stream is not None and stream_task.names_table(call)
        return SparkRequest(
            inputs=await self._inputs.read_inputs(inputs, call, home),
            expected=parse_expected(inputs, call),
            stream=stream,
            now=self._inputs.get_now(),
            statements=statements,
            code=code,
            step=call.site.step,
            params=_parse_params(fields.get("params")),
            conf=self._parse_conf(fields.get("session")),
            plan=self._build_plan(call, home),
            is_trusted=self._limits.is_code_allowed,
            target=None if has_table else await self._inputs.describe_target(call, home),
            table=await self._tables.open_table(call, home) if has_table else None,
            kept_events=event_logs.open_event_log(call, is_stream=stream is not None),
            is_explained=bool(coercion.coerce_boolean(fields.get("explain"))),
        )

    async def _describe_stream(self, call: Call, home: StoreAddress) -> StreamPlan | None:
        options = stream_task.parse_mode(call)
        if options is None:
            return None
        return await stream_task.describe_stream(
            call,
            options,
            stream_task.name_arriving_input(call.fields.get("inputs"), options),
            reader=self._inputs,
            home=home,
            is_near=self._limits.master.startswith("local"),
        )

    async def _load_source(self, call: Call) -> tuple[str | None, tuple[str, ...]]:
        """Return the code of a task, or its statements; raises `ToolFailure`."""
        code, sql = call.fields.get("code"), call.fields.get("sql")
        script = call.fields.get("script")
        if script is not None and code is None and sql is None:
            uri = str(script.get("uri", "")) if isinstance(script, dict) else ""
            text = await self._scripts.load_text(script, call)
            code, sql = (None, text) if uri.endswith(".sql") else (text, None)
        if code is not None:
            self._check_allowed()
            return str(code), ()
        texts = sql if isinstance(sql, list) else [sql]
        if not all(isinstance(text, str) for text in texts):
            raise _build_invalid_failure("field 'sql' must be SQL text")
        sources = tuple(
            statement for text in texts for statement in lexer.cut_spark_statements(str(text))
        )
        if not sources:
            raise _build_invalid_failure("field 'sql' holds no statement")
        return None, sources

    def _check_allowed(self) -> None:
        if self._limits.is_code_allowed:
            return
        text = (
            "Python in Spark may do in executors what this worker's user may: an operator "
            f"must allow it with {ALLOWED_SETTING}=true; SQL needs no permission"
        )
        raise ToolFailure(build_error("config", text, source="spark"))

    def _parse_conf(self, session: Any) -> dict[str, str]:
        if session is None:
            return {}
        if not isinstance(session, dict) or session.keys() - set(_SESSION_KEYS):
            raise _build_invalid_failure(f"field 'session' takes {', '.join(_SESSION_KEYS)}")
        master = session.get("master") or session.get("remote")
        if master is not None and str(master) != self._limits.master:
            text = (
                f"this deployment runs Spark at {self._limits.shown_master}: leave session.master "
                "out, or send the task to a pool whose workers use another master"
            )
            raise ToolFailure(build_error("config", text, source="spark"))
        conf = session.get("conf") or {}
        if not isinstance(conf, dict):
            raise _build_invalid_failure("session.conf must map names to values")
        for name in conf:
            if not str(name).startswith(CONF_ALLOWED):
                text = f"session.conf may not set '{name}': it takes {', '.join(CONF_ALLOWED)}"
                raise ToolFailure(build_error("config", text, source="spark"))
        return {str(name): _format_setting(value) for name, value in conf.items()}

    def _build_plan(self, call: Call, home: StoreAddress) -> WritePlan:
        output = call.output
        format_name = output.format if output is not None else "auto"
        format_: Format = "parquet" if format_name == "parquet" else "arrow"
        partition_by = output.partition_by if output is not None else ()
        return WritePlan(home=home, format=format_, partition_by=tuple(partition_by))

    async def _build_tabular(
        self, spark_result: SparkResult, ask: SparkRequest, call: Call
    ) -> dict[str, Any]:
        manifests = spark_result.manifests or []
        count = sum(manifest.row_count for manifest in manifests)
        raw: dict[str, Any] = {
            "rows": [],
            "row_count": count,
            "columns": spark_result.columns,
            "types": spark_result.types,
            "statement_count": max(1, len(ask.statements)),
            "status": "ok",
        }
        if call.sink is not None:
            await self._stream_rows(call.sink, spark_result, call)
            return {"statement_count": raw["statement_count"], "status": "ok"}
        if call.may_spread and await self._is_large(manifests, ask, call):
            raw["rows"] = spread_table.build_marker(
                await self._store_parts(spark_result, ask, call)
            )
            return raw
        size = sum(part_manifest.payload_bytes for part_manifest in manifests)
        if size > self._limits.result_bytes_max:
            raise ToolFailure(_build_too_large_error(size, self._limits.result_bytes_max))
        raw["rows"] = await self._read_all_rows(manifests, call)
        return raw

    async def _build_named(
        self, result: SparkResult, ask: SparkRequest, call: Call
    ) -> dict[str, Any]:
        """Return the tables of `main` by name, beside its other values; large ones by reference."""
        value_by_name: dict[str, Any] = dict(result.value or {})
        for name, table in result.named.items():
            raw = await self._build_tabular(table, ask, call)
            if spread_table.is_spread_marker(raw["rows"]):
                raw = await self._keep_table(raw, call)
            value_by_name[name] = _add_findings(raw, table)
        return _add_findings(value_by_name, result)

    async def _keep_table(self, raw: dict[str, Any], call: Call) -> dict[str, Any]:
        """Store what a step with this table alone would give, and return the reference to it."""
        pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="spark", raw=raw)}, last="t")
        store = ResultStore(payloads=self._references.get_payloads(call.site), mask=self._code.mask)
        envelope = await store.store_result(pipeline_result, status="ok", output=call.output)
        assert envelope.reference is not None, "rows in parts are kept by reference"
        locator = locators.build_result_locator(
            call.site.execution_id, call.site.step, identity.mint_token()
        )
        mapping = StoredResult(reference=envelope.reference, locator=locator).as_mapping()
        return {**mapping, "row_count": raw["row_count"], "columns": raw["columns"]}

    async def _is_large(self, manifests: list[PartManifest], ask: SparkRequest, call: Call) -> bool:
        """Tell whether rows stay in the store: a few travel with the result, as those of others."""
        if (
            not manifests
            or any(manifest.data is None for manifest in manifests)
            or ask.plan.partition_by
        ):
            return bool(manifests)
        if (
            sum(part_manifest.payload_bytes for part_manifest in manifests)
            > ask.plan.inline_bytes_max
        ):
            return True
        rows = await self._read_all_rows(manifests, call)
        return len(codec.encode_json(rows)) > _get_inline_max(call)

    async def _read_all_rows(self, manifests: list[PartManifest], call: Call) -> list[Any]:
        return [row for manifest in manifests for row in await self._read_rows(manifest, call)]

    async def _store_parts(
        self, spark_result: SparkResult, ask: SparkRequest, call: Call
    ) -> SpreadTable:
        """Store what executors handed over as bytes, and describe the whole table."""
        payloads = self._references.get_payloads(call.site)
        stored_manifests = [
            part_manifest
            if part_manifest.ref is not None
            else await _store_part(payloads, part_manifest, ask.plan)
            for part_manifest in spark_result.manifests or []
        ]
        try:
            return part_writer.build_spread(stored_manifests, ask.plan, spark_result.columns)
        except Exception as problem:
            error = job_loader.explain_failure(problem)
            if error is None:
                raise
            raise ToolFailure(error) from problem

    async def _read_rows(self, part_manifest: PartManifest, call: Call) -> list[Any]:
        data = part_manifest.data
        if data is None:
            assert part_manifest.ref is not None, "a part is in the store or in its manifest"
            data = await self._references.get_payloads(call.site).read_payload(part_manifest.ref)
        try:
            return await asyncio.to_thread(result_values.read_table_rows, data)
        except PayloadUnreadable as problem:
            raise ToolFailure(build_error("schema", str(problem), source="spark")) from problem

    async def _stream_rows(self, sink: RowSink, spark_result: SparkResult, call: Call) -> None:
        await sink.write_rows([], spark_result.columns)
        for part_manifest in spark_result.manifests or []:
            rows = await self._read_rows(part_manifest, call)
            for start in range(0, len(rows), sink.window_rows):
                await sink.write_rows(rows[start : start + sink.window_rows], spark_result.columns)


def _build_written(result: SparkResult, ask: SparkRequest) -> dict[str, Any]:
    """Say what a task has written into a dataset; the rows themselves are there."""
    report = result.written
    assert report is not None, "the caller has looked"
    raw = {
        "rows": [],
        "row_count": report.row_count,
        "columns": result.columns,
        "types": result.types,
        "statement_count": max(1, len(ask.statements)),
        "status": "ok",
        "written": codec.to_builtins(report),
    }
    return _add_findings(raw, result)


def _add_findings(raw: dict[str, Any], result: SparkResult) -> dict[str, Any]:
    """Tell what checks have found, and of the rows that did not fit, by input."""
    if result.checks:
        raw["checks"] = codec.to_builtins(result.checks)
    if result.diverted:
        raw["diverted"] = result.diverted
    if result.physical_plan:
        raw["plan"] = result.physical_plan
    if result.rejected:
        raw["rejected"] = dataset_results.show_rejects(result.rejected)
    return raw


async def _store_part(
    payloads: TenantPayloads, part_manifest: PartManifest, plan: WritePlan
) -> PartManifest:
    assert part_manifest.data is not None, "a part is in the store or in its manifest"
    ref: PayloadRef = await payloads.store_payload(
        part_manifest.data,
        media_type=part_writer.get_media_type(plan.format),
        row_count=part_manifest.row_count,
    )
    return PartManifest(
        row_count=part_manifest.row_count,
        payload_bytes=part_manifest.payload_bytes,
        schema=part_manifest.schema,
        ref=ref,
        values=part_manifest.values,
        head=part_manifest.head,
    )


def _get_inline_max(call: Call) -> int:
    output = call.output
    if output is None:
        return INLINE_BYTES_MAX
    if output.inline_max_bytes is not None:
        return output.inline_max_bytes
    return RESULT_INLINE_BYTES_MAX if wants_handle(output) else INLINE_BYTES_MAX


def _parse_params(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _build_invalid_failure("field 'params' must map names to values")
    return {str(name): item for name, item in value.items()}


def _format_setting(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _build_too_large_error(size: int, size_max: int) -> ErrorObject:
    text = (
        f"the rows have {size} bytes and are read in this pipeline, {size_max} is the limit: give "
        "the spark task a step of its own, and read its result by reference"
    )
    return build_error("payload_too_large", text, source="spark")


def _build_invalid_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="spark"))
