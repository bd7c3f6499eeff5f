"""A small history whose steps lead to one another: fetch, twice clean, a loop, and a stream."""

from tests.support.storage import ORGANIZATION, TENANT

from noetl_contracts import codec, locators
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import Event
from noetl_contracts.events.loop_events import LoopDone, LoopStats
from noetl_contracts.events.step_events import CallDone, CallError, StepEnter, StepExit
from noetl_contracts.ids import CommandId, RunId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.status import RunStatus

DONE, COMMAND = RunStatus.COMPLETED, CommandId("5")


def stored(text: str) -> ResultEnvelope:
    sha256 = codec.digest_hex(text.encode())
    reference = PayloadRef(
        uri=locators.build_payload_locator(TENANT, ORGANIZATION, sha256),
        sha256=sha256,
        media_type="application/json",
        payload_bytes=len(text),
        row_count=3,
    )
    return ResultEnvelope(status="ok", reference=reference)


def enter(step: str, run: str, **fields: str) -> StepEnter:
    came_from, stream_of = fields.get("came_from"), fields.get("stream_of")
    return StepEnter(
        step=step,
        run_id=RunId(run),
        activation=int(run),
        came_from=came_from,
        stream_of=None if stream_of is None else RunId(stream_of),
    )


def leave(step: str, run: str, *targets: str) -> StepExit:
    return StepExit(step=step, run_id=RunId(run), status=DONE, targets=list(targets))


def history() -> list[Event]:
    """`clean` runs twice: `report` follows its first run, and begins after the second has."""
    inline = ResultEnvelope(status="ok", context={"data": 1})
    item = CallDone(step="loop", run_id=RunId("5"), command_id=COMMAND, result=inline, item_index=0)
    return [
        enter("fetch", "1"),
        CallDone(step="fetch", run_id=RunId("1"), command_id=COMMAND, result=stored("fetched")),
        leave("fetch", "1", "clean"),
        enter("clean", "2", came_from="fetch"),
        CallDone(step="clean", run_id=RunId("2"), command_id=COMMAND, result=stored("clean one")),
        leave("clean", "2", "clean", "report"),
        enter("clean", "3", came_from="clean"),
        enter("report", "4", came_from="clean"),
        CallError(
            step="report",
            run_id=RunId("4"),
            command_id=COMMAND,
            error=ErrorObject(kind="k", message="m"),
        ),
        leave("report", "4", "loop"),
        enter("loop", "5", came_from="report"),
        item,
        LoopDone(
            step="loop", run_id=RunId("5"), stats=LoopStats(total=1, success=1), result=inline
        ),
        enter("handle", "6", came_from="clean", stream_of="3"),
    ]


def stored_history() -> list[Event]:
    """The same without the stream, and at the end a result that is stored again."""
    again = CallDone(
        step="last", run_id=RunId("6"), command_id=COMMAND, result=stored("at the end")
    )
    return [
        *history()[:-1],
        leave("loop", "5", "last"),
        enter("last", "6", came_from="loop"),
        again,
    ]
