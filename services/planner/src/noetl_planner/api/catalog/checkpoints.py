"""`state` of streams: checkpoints in the payload store, which a person may remove."""

from http import HTTPStatus

from litestar import delete
from litestar.params import FromPath
from litestar.status_codes import HTTP_200_OK
from msgspec import Struct

from noetl_contracts import codec, locators, spelling, transient_objects
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_planner.api.catalog.states import Reason, WhoAsks
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_playbook.model import streams

# Names that an error suggests are among so many objects.
_NAMES_MAX = 1_000
_PAGE = 1_000


class RemovedCheckpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint that is gone, and how many objects of the payload store it had."""

    name: str
    object_count: int


@delete("/state/checkpoints/{name:str}", status_code=HTTP_200_OK, tags=["state"])
async def remove_checkpoint(
    services: Services, name: FromPath[str], who: WhoAsks, reason: Reason
) -> RemovedCheckpoint:
    """Remove the checkpoint of a stream: its next run reads every file that is there again.

    A run that goes on meanwhile fails with its next batch.
    """
    if not streams.is_checkpoint_name(name):
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="invalid_name",
            detail=f"{name[:100]!r} is no name of a checkpoint",
            hint="it has letters, digits, '_', '.' and '-', as follow.checkpoint says it",
        )
    prefix = transient_objects.build_checkpoint_prefix(name)
    if not await services.payloads.list_names(prefix, **services.tenant_scope, names_max=1):
        raise await _build_unknown_error(services, name)
    async with services.record_change(
        "checkpoint.removed", name, who=services.name_asker(who), reason=reason
    ):
        # It is recorded first: what is left after a crash is removed by the same request.
        pass
    return RemovedCheckpoint(name=name, object_count=await _remove_objects(services, prefix))


async def _remove_objects(services: ApiServices, prefix: str) -> int:
    """Remove the head, by which a stream that runs finds that it has ended, and all that is left.

    Files of a checkpoint that are content of their own are collected once nothing names them.
    """
    head_name = transient_objects.build_head_name(prefix)
    head = await services.payloads.find_named(head_name, **services.tenant_scope)
    count = 0 if head is None else 1
    await _remove_object(services, head_name)
    while True:
        names = await services.payloads.list_names(prefix, **services.tenant_scope, names_max=_PAGE)
        for object_name in names:
            await _remove_object(services, object_name)
        count += len(names)
        if len(names) < _PAGE:
            return count


async def _remove_object(services: ApiServices, name: str) -> None:
    scope = services.tenant_scope
    uri = locators.build_named_locator(scope["tenant_id"], scope["organization_id"], name)
    await services.payloads.delete_payload(
        PayloadRef(
            uri=uri,
            sha256=codec.digest_hex(b""),
            media_type=JSON_MEDIA_TYPE,
            payload_bytes=0,
            row_count=0,
        )
    )


async def _build_unknown_error(services: ApiServices, name: str) -> ApiError:
    folder = f"{transient_objects.STREAMS}/"
    found = await services.payloads.list_names(
        folder, **services.tenant_scope, names_max=_NAMES_MAX
    )
    names = sorted({item.split("/")[1] for item in found})
    return problems.build_not_found_error(
        f"there is no checkpoint {name[:100]!r}",
        hint=spelling.suggest_or_list(name, names, label="there are"),
    )


ROUTES = [remove_checkpoint]
