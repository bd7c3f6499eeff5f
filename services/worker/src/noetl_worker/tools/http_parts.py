"""Files that an http task sends: text, values as JSON, and payloads by reference."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec, locators
from noetl_contracts.errors import LocatorError, Permanent, Retryable
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_playbook import coercion
from noetl_playbook.results import PipelineResult
from noetl_playbook.views import pipeline_view
from noetl_storage.ports import Payloads
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site
from noetl_worker.domain.texts import as_text
from noetl_worker.patience import patiently

_TEXT = "text/plain; charset=utf-8"


class Part(Struct, frozen=True, kw_only=True):
    """One file of a multipart body."""

    name: str
    data: bytes
    media_type: str


async def load(files: Any, payloads: Payloads, site: Site) -> tuple[Part, ...]:
    """Read the field `files`; raises `ToolFailure`."""
    if not files:
        return ()
    if not isinstance(files, dict):
        raise ToolFailure(failure("validation", "field 'files' must be a mapping", source="http"))
    return tuple(
        [
            await _part(as_text(name), value, payloads, site)
            for name, value in files.items()
            if value is not None
        ]
    )


async def _part(name: str, value: Any, payloads: Payloads, site: Site) -> Part:
    if isinstance(value, dict) and value.get("kind") == "result_ref":
        return await _referenced(name, value, payloads, site)
    media_type = _TEXT if isinstance(value, str) else JSON_MEDIA_TYPE
    return Part(name=name, data=as_text(value).encode(), media_type=media_type)


async def _referenced(name: str, value: dict[str, Any], payloads: Payloads, site: Site) -> Part:
    """Read a stored result of the task's own organization: a digest names nothing elsewhere."""
    try:
        reference = PayloadRef(
            uri=locators.payload(site.tenant_id, site.organization_id, str(value.get("sha256"))),
            sha256=str(value.get("sha256")),
            media_type=str(value.get("media_type") or JSON_MEDIA_TYPE),
            payload_bytes=coercion.integer(value.get("bytes")) or 0,
        )
        data = await patiently(lambda: payloads.read(reference))
    except LocatorError as problem:
        text = f"field 'files.{name}' is no reference: {problem}"
        raise ToolFailure(failure("validation", text, source="http")) from problem
    except (Permanent, Retryable) as problem:
        text = f"field 'files.{name}' refers to what cannot be read: {problem}"
        raise ToolFailure(failure("reference_not_available", text, source="http")) from problem
    if reference.media_type != JSON_MEDIA_TYPE:
        return Part(name=name, data=data, media_type=reference.media_type)
    result = pipeline_view(codec.decode_as(data, PipelineResult)).plain()
    media_type = _TEXT if isinstance(result, str) else JSON_MEDIA_TYPE
    return Part(name=name, data=as_text(result).encode(), media_type=media_type)
