"""A worker with a real Spark session and a payload store that executors reach."""

import base64
import copy
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import structs
from tests.support.calls import call_of
from tests.support.servers import S3Server
from tests.support.working import ORGANIZATION, TENANT, Bench, bench

from noetl_chassis.seals.payload_seal import read_payload_keys
from noetl_contracts import codec, locators
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_playbook.views.results import PipelineResult, StoredResult, TaskResult
from noetl_storage.payloads.factory import open_payloads
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.result_store import ResultStore
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads
from noetl_worker.settings import PREFIX, ExecutorKeys
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.deferred_tool import DeferredTool

SEAL_KEY = f"k1:{base64.b64encode(b'7' * 32).decode()}"


@asynccontextmanager
async def spark_bench(
    folder: Path, *, s3: S3Server | None = None, **fields: Any
) -> AsyncIterator[Bench]:
    """A worker whose payloads are sealed, in files or in the bucket of a server."""
    url, access_key, secret_key = f"file://{folder}/payloads", "", ""
    if s3 is not None:
        url, access_key, secret_key = s3.payload_url, s3.access_key, s3.secret_key
    async with (
        open_payloads(
            url,
            access_key=access_key or None,
            secret_key=secret_key or None,
            seals=read_payload_keys(SEAL_KEY, file=""),
        ) as payloads,
        bench(
            store=payloads,
            payload_url=url,
            payload_access_key=access_key,
            payload_secret_key=secret_key,
            payload_seal_key=SEAL_KEY,
            work_directory=str(folder / "work"),
            **fields,
        ) as found,
    ):
        yield found
    forget_keys()


def forget_keys() -> None:
    """Take back what a session's executors were told, for the tests that follow."""
    for name in ExecutorKeys.__struct_fields__:
        os.environ.pop(f"{PREFIX}{name.upper()}", None)


def spark_call(*, may_spread: bool = True, timeout_s: float = 240, **fields: Any) -> Call:
    """A call of the tool, in a step of its own."""
    output = fields.pop("output", None)
    return structs.replace(
        call_of("spark", fields, timeout_s=timeout_s), may_spread=may_spread, output=output
    )


async def stored(worker: Bench, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Keep rows as a step's result, and return the `_ref` that templates see."""
    raw = {"rows": rows, "columns": list(rows[0]), "row_count": len(rows)}
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="postgres", raw=raw)}, last="t")
    ref: PayloadRef = await worker.payloads.put_payload(
        codec.encode_json(pipeline_result),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=JSON_MEDIA_TYPE,
        row_count=len(rows),
    )
    return StoredResult(
        reference=ref, locator=locators.build_result_locator("1", "load", "1")
    ).as_mapping()


async def answered(worker: Bench, call: Call) -> Any:
    """What a call gives; it must not fail."""
    outcome: Outcome = await worker.tools.run(call)
    assert outcome.error is None, outcome.error
    return outcome.data


async def kept(worker: Bench, raw: dict[str, Any]) -> dict[str, Any]:
    """Keep what a call gave as a step's result, and return the `_ref` that templates see."""
    place = PayloadOwner(tenant_id=TENANT, organization_id=ORGANIZATION)
    store = TenantPayloads(worker.payloads, place=place, cache=PayloadCache(bytes_max=0))
    result = PipelineResult(tasks={"t": TaskResult(kind="spark", raw=raw)}, last="t")
    envelope = await ResultStore(payloads=store, mask=SecretMask()).store_result(
        result, status="ok"
    )
    assert envelope.reference is not None
    stored_ = StoredResult(
        reference=envelope.reference, locator=locators.build_result_locator("1", "big", "1")
    )
    return stored_.as_mapping()


def trusting(worker: Bench) -> Bench:
    """The same worker, with its session, where tasks may bring code."""
    tool = worker.tools.spark.open_once()
    limits = structs.replace(tool._limits, is_code_allowed=True)
    twin = copy.copy(tool)
    twin._limits = limits
    return structs.replace(
        worker, tools=structs.replace(worker.tools, spark=DeferredTool(lambda: twin))
    )
