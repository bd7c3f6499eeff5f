"""What a reference in a task's field means, and the value behind it."""

from typing import TYPE_CHECKING, Any

import msgspec

from noetl_contracts import codec, locators
from noetl_contracts.errors import LocatorError
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_playbook.templates import output_forms
from noetl_playbook.views.result_view import view_loop, view_pipeline
from noetl_playbook.views.results import LoopResult, PipelineResult
from noetl_storage.ports.ledger_ports import Payloads
from noetl_storage.process.lazy_import import LazyModule
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads
from noetl_worker.tools.calls.call import is_organization_name

if TYPE_CHECKING:
    from noetl_storage.arrow import row_tables
else:
    row_tables = LazyModule("noetl_storage.arrow.row_tables")

# Payloads that tasks name are read once and handed on; the lane remembers its own.
_REMEMBERED_BYTES = 16 * 1024 * 1024


class ReferenceReader:
    """Reads what `_ref` mappings and locators point to, always within the call's organization."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._cache = PayloadCache(bytes_max=_REMEMBERED_BYTES)

    def get_payloads(self, site: UnitScope) -> TenantPayloads:
        """Return the store as the call's organization sees it."""
        place = PayloadOwner(tenant_id=site.tenant_id, organization_id=site.organization_id)
        return TenantPayloads(self._payloads, place=place, cache=self._cache)

    async def load_value(self, reference_value: Any, site: UnitScope) -> Any:
        """Return the plain value behind a reference; raises `ToolFailure`."""
        ref = find_reference(reference_value, site)
        if ref is None:
            raise ToolFailure(
                build_error("validation", f"{reference_value!r:.120} is no reference")
            )
        loaded_result = await self.get_payloads(site).load_value(ref)
        return get_shown_value(loaded_result) if names_result(reference_value) else loaded_result

    async def load_part(self, part: Any, site: UnitScope) -> Any:
        """Return what one part of a reduce holds, or what a reference means."""
        part_reference = get_part_reference(part)
        if is_reference(part_reference):
            value = await self.load_value(part_reference, site)
            return value if part_reference is part else _get_unit_value(value)
        return (
            part_reference["data"]
            if is_part(part_reference) and "data" in part_reference
            else part_reference
        )


def is_part(value: Any) -> bool:
    """Tell whether a value is a part of a reduce, as its body sees it."""
    return isinstance(value, dict) and "index" in value and "ref" in value and "status" in value


def get_part_reference(part: Any) -> Any:
    """Return the reference in a part of a reduce, or the part itself when it has none."""
    if not is_part(part) or part["ref"] is None:
        return part
    ref = part["ref"]
    if "kind" in ref:
        return ref
    named_fields = {"ref": ref.get("uri"), "bytes": ref.get("payload_bytes")}
    return {"kind": "result_ref", **ref, **named_fields}


def _get_unit_value(result: Any) -> Any:
    """Return what a unit's kept result is: of several tables the one that they make."""
    if isinstance(result, dict) and "results" in result and "tasks" not in result:
        return row_tables.join_results(result["results"])
    return get_shown_value(result)


def build_reference(ref: PayloadRef) -> dict[str, Any]:
    """Return how a result shows a payload, so that other tasks can name it."""
    return {
        "kind": "result_ref",
        "ref": ref.uri,
        "store": "auto",
        "bytes": ref.payload_bytes,
        "sha256": ref.sha256,
        "media_type": ref.media_type,
    }


def is_reference(value: Any) -> bool:
    """Tell whether a field's value is a `_ref` mapping or a `noetl://` locator."""
    if isinstance(value, dict):
        return value.get("kind") == "result_ref"
    is_locator = isinstance(value, str) and value.startswith(locators.SCHEME)
    return is_locator and not is_organization_name(value)


def names_result(value: Any) -> bool:
    """Tell whether a reference is that of a step's result, not of a bare payload."""
    text = value.get("ref") if isinstance(value, dict) else value
    return isinstance(text, str) and text.startswith(f"{locators.SCHEME}execution/")


def find_reference(value: Any, site: UnitScope) -> PayloadRef | None:
    """Return the stored content that a value refers to, or None; raises `ToolFailure`."""
    if not is_reference(value):
        return None
    try:
        return (
            _parse_mapping(value, site) if isinstance(value, dict) else _parse_locator(value, site)
        )
    except (LocatorError, msgspec.ValidationError) as problem:
        text = f"the reference cannot be used: {problem}"
        raise ToolFailure(build_error("validation", text, source="store")) from problem


def _parse_mapping(value: dict[str, Any], site: UnitScope) -> PayloadRef:
    sha256 = str(value.get("sha256", ""))
    # The digest decides; whose store is asked is never the playbook's to say.
    return codec.convert_value(
        {
            "uri": locators.build_payload_locator(site.tenant_id, site.organization_id, sha256),
            "sha256": sha256,
            "media_type": value.get("media_type") or JSON_MEDIA_TYPE,
            "payload_bytes": value.get("bytes") or 0,
            "row_count": value.get("row_count"),
        },
        PayloadRef,
    )


def _parse_locator(text: str, site: UnitScope) -> PayloadRef:
    match locators.parse_locator(text).segments:
        case ("tenant", tenant, "org", organization, "payloads", "sha256", sha256):
            if (tenant, organization) != (site.tenant_id, site.organization_id):
                raise ToolFailure(
                    build_error("config", f"{text!r:.200} belongs to another organization")
                )
            return PayloadRef(uri=text, sha256=sha256, media_type=JSON_MEDIA_TYPE, payload_bytes=0)
        case ("execution", _, "result", *_):
            raise ToolFailure(
                build_error(
                    "reference_not_available",
                    f"{text!r:.200} names no result that this task's templates name: "
                    "pass the result's own '_ref', as in {{ load._ref }}",
                    source="store",
                )
            )
        case _:
            raise ToolFailure(build_error("config", f"{text!r:.200} does not point to a payload"))


def get_shown_value(loaded_result: Any) -> Any:
    """Return the value of a result as it is kept; of one task, what that task returned."""
    if (
        isinstance(loaded_result, dict)
        and "results" in loaded_result
        and "tasks" not in loaded_result
    ):
        return view_loop(codec.convert_value(loaded_result, LoopResult)).to_plain()
    pipeline_result = codec.convert_value(loaded_result, PipelineResult)
    if len(pipeline_result.tasks) == 1:
        return next(iter(pipeline_result.tasks.values())).raw
    return output_forms.to_plain(view_pipeline(pipeline_result))
