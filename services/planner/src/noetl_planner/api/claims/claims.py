"""The claim API for workers in other languages: commands of pools that are served over HTTP."""

from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.params import FromPath, JSONBody
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts import ids, spelling
from noetl_contracts.commands.worker_pools import POOL_PATTERN
from noetl_contracts.errors import ErrorObject, get_error_code
from noetl_contracts.ids import CommandId, WorkerId
from noetl_contracts.json_values import to_json_value
from noetl_contracts.ledger.records import IssuedCommand
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandHeartbeat,
    CommandLost,
)
from noetl_planner.api.claims import claim_search, execution_watch, leases, reports
from noetl_planner.api.claims.claim_search import Asker, Claim
from noetl_planner.api.claims.execution_watch import ExecutionWatch
from noetl_planner.api.claims.leases import Attempt, Identity, Lease, Terms, WorkerName
from noetl_planner.api.claims.reports import Verdict
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services

# Signs of life that come faster are not written down.
HEARD_S = 1.0
RELEASED = "released"
# So often a command may be given back and claimed again: each time is two events for good.
RELEASES_MAX = 100

Text = Annotated[str, Meta(min_length=1, max_length=4000)]
Kind = Annotated[str, Meta(pattern=r"^[a-z][a-z_]{0,39}$")]


class PoolAsker(Asker, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who asks for any command of a pool."""

    pool: Annotated[str, Meta(pattern=POOL_PATTERN)]


class Claimed(Struct, frozen=True, kw_only=True):
    """A command, or nothing: ask again."""

    claim: Claim | None


class Held(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lease that a claim gave, without the identity that the address has."""

    execution_id: Identity
    attempt: Attempt
    worker_id: WorkerName

    def to_lease(self, services: ApiServices, command_id: str) -> Lease:
        """Complete the lease with the command of the address; raises a 403 for another's."""
        leases.check_worker(services, self.worker_id)
        return Lease(
            execution_id=self.execution_id,
            command_id=command_id,
            attempt=self.attempt,
            worker_id=self.worker_id,
        )


class Completed(Held, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the pipeline gave, as any JSON, and what it writes to `ctx`."""

    result: Any = None
    set: dict[str, Any] = msgspec.field(default_factory=dict)


class Mistake(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a pipeline failed, in the words of the language's section 14."""

    kind: Kind
    message: Text
    code: Annotated[str, Meta(max_length=80)] | None = None
    retryable: bool = False

    def to_error(self, step: str | None = None) -> ErrorObject:
        """Write it as events carry it."""
        return ErrorObject(
            kind=self.kind,
            code=self.code or get_error_code(self.kind),
            message=self.message,
            retryable=self.retryable,
            step=step,
        )


class Failed(Held, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A report that the pipeline failed, after all attempts of the worker."""

    error: Mistake


class Heard(Struct, frozen=True, kw_only=True):
    """A lease goes on; `should_stop`: the execution is being cancelled, release the command."""

    terms: Terms
    should_stop: bool


@post("/commands/claim", status_code=HTTP_200_OK, tags=["claims"])
async def claim(services: Services, data: JSONBody[PoolAsker]) -> Claimed:
    """Take the most urgent command of a pool; answers `null` when there is none."""
    check_pool(services, data.pool)

    async def list_waiting() -> list[IssuedCommand]:
        return await services.history.projections.list_urgent(
            **services.tenant_scope, pools=(data.pool,), commands_max=claim_search.CANDIDATES_MAX
        )

    return Claimed(
        claim=await claim_search.claim_command(services, data, list_waiting, place=data.pool)
    )


@post("/commands/{command_id:str}/heartbeat", status_code=HTTP_200_OK, tags=["claims"])
async def beat(services: Services, command_id: FromPath[str], data: JSONBody[Held]) -> Heard:
    """Say that work goes on; the lease begins anew."""
    watch = await execution_watch.open_watch(services, data.execution_id)
    lease = data.to_lease(services, check_command_id(command_id))
    conflict = leases.find_command_conflict(watch.state, lease, services.pools.by_http)
    if conflict is not None:
        raise conflict
    return await record_heartbeat(services, watch, lease)


@post("/commands/{command_id:str}/complete", status_code=HTTP_200_OK, tags=["claims"])
async def complete(
    services: Services, command_id: FromPath[str], data: JSONBody[Completed]
) -> Verdict:
    """End a command well; the answer says what the planner made of it."""
    problems.check_depth(data.set, "set")
    watch, lease = await _read_step_command(services, command_id, data)
    pools = services.pools.by_http
    is_ours = leases.find_command_conflict(watch.state, lease, pools) is None
    fact = CommandCompleted(
        command_id=CommandId(lease.command_id),
        attempt=lease.attempt,
        worker_id=WorkerId(lease.worker_id),
        result=await _keep_step_result(services, watch, lease, data)
        if is_ours
        else _empty_result(),
        patch=to_json_value(data.set),
    )
    return await reports.settle_command(watch, lease, fact, pools=pools)


@post("/commands/{command_id:str}/fail", status_code=HTTP_200_OK, tags=["claims"])
async def fail(services: Services, command_id: FromPath[str], data: JSONBody[Failed]) -> Verdict:
    """End a command badly: what follows is the playbook's to say."""
    watch, lease = await _read_step_command(services, command_id, data)
    command_state = watch.state.commands.get(CommandId(lease.command_id))
    fact = CommandFailed(
        command_id=CommandId(lease.command_id),
        attempt=lease.attempt,
        worker_id=WorkerId(lease.worker_id),
        error=data.error.to_error(None if command_state is None else command_state.step),
    )
    return await reports.settle_command(watch, lease, fact, pools=services.pools.by_http)


@post("/commands/{command_id:str}/release", status_code=HTTP_200_OK, tags=["claims"])
async def release(services: Services, command_id: FromPath[str], data: JSONBody[Held]) -> Held:
    """Give a command back, not begun or not finished; it is nobody's fault and may be claimed."""
    watch = await execution_watch.open_watch(services, data.execution_id)
    lease = data.to_lease(services, check_command_id(command_id))
    conflict = leases.find_command_conflict(watch.state, lease, services.pools.by_http)
    if conflict is not None:
        raise conflict
    if lease.attempt > RELEASES_MAX:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="released_too_often",
            detail=f"attempt {lease.attempt} of command {command_id} is not given back any more",
            hint="complete it or fail it; when its lease ends that counts as a loss",
        )
    fact = CommandLost(
        command_id=CommandId(lease.command_id),
        attempt=lease.attempt,
        reason=RELEASED,
        is_release=True,
    )
    await watch.publish_fact(fact, key=f"{lease.command_id}/{lease.attempt}/released")
    return data


async def record_heartbeat(services: ApiServices, watch: ExecutionWatch, lease: Lease) -> Heard:
    """Write a sign of life down, unless the last one is fresh."""
    command_state = watch.state.commands[CommandId(lease.command_id)]
    if (services.clock.now() - command_state.heard_at).total_seconds() >= HEARD_S:
        fact = CommandHeartbeat(
            command_id=command_state.command_id,
            attempt=lease.attempt,
            worker_id=WorkerId(lease.worker_id),
        )
        await watch.publish_fact(
            fact, key=f"{lease.command_id}/{lease.attempt}/heard/{services.mint()}"
        )
    return Heard(
        terms=leases.build_lease_terms(services), should_stop=watch.state.cancelling_at is not None
    )


def check_pool(services: ApiServices, pool: str) -> None:
    """Refuse pools that are not there, or that are served by JetStream."""
    if pool in services.pools.by_http:
        return
    if pool in services.pools.by_stream:
        raise leases.build_not_http_pool_error(pool)
    names = services.pools.pool_names
    raise problems.build_not_found_error(
        f"there is no pool {pool!r}",
        hint=spelling.suggest_or_list(pool, sorted(names), label="the pools are"),
    )


def check_command_id(command_id: str) -> str:
    """Admit what can name a command; raises a 404."""
    if not ids.is_identity(command_id):
        raise problems.build_not_found_error(
            f"{command_id[:80]!r} is no command's id: it is a number"
        )
    return command_id


async def _read_step_command(
    services: ApiServices, command_id: str, claim: Held
) -> tuple[ExecutionWatch, Lease]:
    """Read the execution of a command that is no frame's; raises a 409 for one that is."""
    watch = await execution_watch.open_watch(services, claim.execution_id)
    lease = claim.to_lease(services, check_command_id(command_id))
    command_state = watch.state.commands.get(CommandId(lease.command_id))
    if command_state is not None and command_state.frame_id is not None:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="command_is_a_frame",
            detail=f"command {lease.command_id} runs frame {command_state.frame_id}",
            hint=f"POST /api/frames/{command_state.frame_id}/commit ends it",
        )
    return watch, lease


async def _keep_step_result(
    services: ApiServices, watch: ExecutionWatch, lease: Lease, data: Completed
) -> ResultEnvelope:
    command_state = watch.state.commands[CommandId(lease.command_id)]
    program = await services.playbooks.programs.get_begun_program(watch.state)
    task = program.steps[command_state.step].tool[-1].name
    return await reports.keep_pipeline_result(services, data.result, task=task)


def _empty_result() -> ResultEnvelope:
    """Stand in for a result that the planner refuses anyway."""
    return ResultEnvelope(status="ok")


ROUTES = [claim, beat, complete, fail, release]
