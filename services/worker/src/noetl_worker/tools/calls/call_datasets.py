"""The datasets of a call: sources whose files are found, and sinks that are described."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import structs

from noetl_chassis import identity as process_identity
from noetl_chassis.clock import Clock
from noetl_contracts.log_chunks import NOTICE
from noetl_playbook.model import datasets, streams
from noetl_playbook.model.datasets import DatasetInvalid, DatasetSource, LakeTable
from noetl_playbook.model.expectations import (
    ExpectationInvalid,
    Expectations,
    parse_expectations,
)
from noetl_storage.process.lazy_import import LazyModule
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.domain import postgres_connection
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.tools.calls import dataset_places
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.calls.dataset_places import DatasetPlace, WebFiles

if TYPE_CHECKING:
    from noetl_storage.arrow import table_schema
    from noetl_worker.datasets import batch_sink, file_sink, plan_scan, read_plan
    from noetl_worker.datasets.address import DatasetAddress
    from noetl_worker.datasets.batch_sink import SinkPlan
    from noetl_worker.datasets.plan_scan import PlannedSource
else:
    # What names datasets waits until their libraries are loaded, by the tool or its caller.
    table_schema = LazyModule("noetl_storage.arrow.table_schema")
    batch_sink = LazyModule("noetl_worker.datasets.batch_sink")
    file_sink = LazyModule("noetl_worker.datasets.file_sink")
    plan_scan = LazyModule("noetl_worker.datasets.plan_scan")
    read_plan = LazyModule("noetl_worker.datasets.read_plan")

PlaceCheck = Callable[[DatasetPlace], None]


class CallDatasets:
    """Opens what calls say of datasets; every tool that reads or writes them shares it."""

    def __init__(self, *, vault: CredentialVault, clock: Clock, web: WebFiles) -> None:
        self._vault = vault
        self._web = web
        self._clock = clock

    def get_now(self) -> datetime:
        """Return the moment that the freshness of rows is measured from."""
        return self._clock.now()

    async def plan_source(
        self,
        fields: Mapping[str, Any],
        call: Call,
        *,
        field: str,
        check_place: PlaceCheck | None = None,
    ) -> "PlannedSource":
        """Find the files of a source and their columns; `field` names it in errors.

        Raises `ToolFailure`.
        """
        try:
            source = datasets.parse_source(fields)
            place = await self._open_source_place(source, call, field)
            if check_place is not None:
                check_place(place)
            plan = await asyncio.to_thread(
                read_plan.build_read_plan,
                place.address,
                structs.replace(source, auth=None),
                place.account,
                await self._open_catalog(source.iceberg, call),
            )
        except DatasetInvalid as problem:
            raise _build_invalid_failure(f"{field}: {problem}", call) from problem
        except table_schema.SchemaMismatch as problem:
            error = build_error("schema", f"{field}: {problem}", source=call.kind)
            raise ToolFailure(error) from problem
        except DatasetProblem as problem:
            error = dataset_places.build_dataset_error(problem, call, field)
            raise ToolFailure(error) from problem
        if plan.guessed is not None:
            call.log.add_line(NOTICE, f'{field}: schema: "{plan.guessed}"')
        return plan_scan.PlannedSource(plan=plan, account=place.account)

    async def _open_source_place(
        self, source: DatasetSource, call: Call, field: str
    ) -> DatasetPlace:
        path = dataset_places.get_path(source)
        if datasets.is_web_path(path):
            return await dataset_places.open_web_file(
                path, source.auth, call=call, web=self._web, field=field
            )
        return await dataset_places.open_place(
            path, source.auth, call=call, vault=self._vault, field=field
        )

    async def open_source(
        self, fields: Mapping[str, Any], call: Call, *, field: str, check_place: PlaceCheck
    ) -> tuple[DatasetSource, "DatasetAddress"]:
        """Read what a source says, and where it is; nothing is looked for there.

        Raises `ToolFailure`.
        """
        try:
            source = datasets.parse_source(fields)
        except DatasetInvalid as problem:
            raise _build_invalid_failure(f"{field}: {problem}", call) from problem
        place = await dataset_places.open_place(
            dataset_places.get_path(source), source.auth, call=call, vault=self._vault, field=field
        )
        check_place(place)
        return structs.replace(source, auth=None), place.address

    async def describe_sink(
        self,
        fields: Mapping[str, Any],
        call: Call,
        *,
        field: str = "output",
        check_place: PlaceCheck | None = None,
    ) -> "SinkPlan":
        """Describe the dataset that a call's rows go to; raises `ToolFailure`."""
        try:
            sink = datasets.parse_sink(fields)
        except DatasetInvalid as problem:
            raise _build_invalid_failure(f"{field}: {problem}", call) from problem
        if sink.table is not None:
            raise _build_invalid_failure(f"{field}: {streams.NO_TABLE}", call)
        place = await dataset_places.open_place(
            dataset_places.get_path(sink), sink.auth, call=call, vault=self._vault, field=field
        )
        if check_place is not None:
            check_place(place)
        return batch_sink.SinkPlan(
            address=place.address,
            sink=structs.replace(sink, auth=None),
            identity=file_sink.build_commit_identity(call.idempotency_key),
            attempt=process_identity.mint_token()[:8],
            now=self._clock.now(),
            account=place.account,
            catalog=await self._open_catalog(sink.iceberg, call),
        )

    async def _open_catalog(self, table: LakeTable | None, call: Call) -> Mapping[str, Any] | None:
        """Return the arguments of a connection to the catalog of an Iceberg table."""
        if table is None:
            return None
        credential = await self._vault.resolve_auth(table.catalog, call.site)
        if credential.kind != "postgres":
            text = (
                f"the catalog of {table.name} is in PostgreSQL, and credential "
                f"'{credential.name}' is of type '{credential.kind}'"
            )
            raise ToolFailure(build_error("config", text, source=call.kind))
        try:
            return postgres_connection.build_connect_arguments(
                credential.fields, application="noetl-iceberg"
            )
        except postgres_connection.UnusableCredential as problem:
            text = f"credential '{credential.name}' cannot be used: {problem}"
            raise ToolFailure(build_error("config", text, source=call.kind)) from problem


def parse_expected(inputs: Any, call: Call) -> dict[str, Expectations]:
    """Read what is expected of the rows of inputs; raises `ToolFailure`."""
    expectations: dict[str, Expectations] = {}
    for name, source in inputs.items() if isinstance(inputs, dict) else ():
        if not isinstance(source, dict) or "expect" not in source:
            continue
        try:
            expected = parse_expectations(source["expect"])
        except ExpectationInvalid as problem:
            raise _build_invalid_failure(f"input '{name}': {problem}", call) from problem
        if expected is not None:
            expectations[str(name)] = expected
    return expectations


def drop_expected(source: Any) -> Any:
    """Return an input without what is expected of its rows."""
    if not isinstance(source, dict) or "expect" not in source:
        return source
    return {key: value for key, value in source.items() if key != "expect"}


def _build_invalid_failure(text: str, call: Call) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source=call.kind))
