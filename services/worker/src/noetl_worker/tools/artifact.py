"""The `artifact` tool: contents by reference or address, read, kept and removed."""

import asyncio
import os
import re
import tempfile
from base64 import b64decode
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import UNSET, structs

from noetl_chassis.blocking_work import run_in_thread
from noetl_contracts import codec
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.payloads import PayloadRef
from noetl_playbook.model import tools
from noetl_storage.ports.ledger_ports import Buckets
from noetl_worker.domain.failures import ToolFailure, build_error, classify_file_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.tools.calls import references
from noetl_worker.tools.calls.call import Call, Outcome, is_organization_name
from noetl_worker.tools.calls.references import ReferenceReader
from noetl_worker.tools.http.http_tool import HttpTool
from noetl_worker.tools.scripts import bucket_scripts
from noetl_worker.tools.tables import contents
from noetl_worker.tools.tables.contents import Content

_ACTIONS = ("get", "put", "delete")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}){0,7}")
_VERSIONS_MAX = 10_000
_ELSEWHERE = {
    "nats-kv": "read and write keys with kind nats",
    "eventlog": "read events with kind http at /api/executions/<id>/events",
}


class ArtifactTool:
    """Reads and writes contents of at most `contents.BYTES_MAX` bytes."""

    def __init__(
        self,
        *,
        references_: ReferenceReader,
        buckets: Buckets,
        http: HttpTool,
        vault: CredentialVault,
        mask: SecretMask,
    ) -> None:
        self._references = references_
        self._buckets = buckets
        self._http = http
        self._vault = vault
        self._mask = mask

    async def run(self, call: Call) -> Outcome:
        """Run one action."""
        fields = {**_pick_input_fields(call), **call.fields}
        call = structs.replace(call, fields=fields)
        try:
            async with task_timeout(call.timeout.total):
                match fields.get("action"):
                    case "get":
                        return Outcome(data=await self._get_content(call))
                    case "put":
                        return Outcome(data=await self._put_content(call))
                    case "delete":
                        return Outcome(data=await self._delete_content(call))
            text = f"field 'action' is {fields.get('action')!r:.40}: use {', '.join(_ACTIONS)}"
            return Outcome(error=build_error("validation", text, source="artifact"))
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except TimeoutError:
            text = f"the content was not there within {call.timeout.total:g} s"
            return Outcome(error=build_error("timeout", text, source="artifact"))
        except KeyError as problem:
            text = f"there is nothing at {_get_address(call)}"
            return Outcome(error=build_error("not_found", text, details={"key": str(problem)}))
        except (Permanent, ValueError) as problem:
            return Outcome(error=build_error("config", str(problem), source="artifact"))
        except OSError as problem:
            return Outcome(
                error=classify_file_error(problem, str(_get_address(call)), source="artifact")
            )
        except Retryable as problem:
            return Outcome(error=build_error("storage_access", str(problem), source="artifact"))

    async def _get_content(self, call: Call) -> dict[str, Any]:
        result_ref = call.fields.get("result_ref")
        if result_ref is None:
            result_ref = _get_address(call)
        if references.is_reference(result_ref):
            return await self._get_referred(result_ref, call)
        if not isinstance(result_ref, str):
            # A result that was small enough to travel is its own content.
            return _build_get_result(
                result_ref,
                uri=None,
                data=codec.encode_json(result_ref),
                media_type="application/json",
            )
        content = await self._read_content(result_ref, call)
        value, fields = await _decode_content(content, call, name=result_ref)
        return _build_get_result(
            value, uri=result_ref, data=content.data, media_type=content.media_type, **fields
        )

    async def _get_referred(self, reference_value: Any, call: Call) -> dict[str, Any]:
        ref = references.find_reference(reference_value, call.site)
        assert ref is not None, "the caller has asked whether it is a reference"
        uri = reference_value["ref"] if isinstance(reference_value, dict) else reference_value
        if references.names_result(reference_value):
            return {
                "data": await self._references.load_value(reference_value, call.site),
                "uri": uri,
                "size_bytes": ref.payload_bytes,
                "sha256": ref.sha256,
                "media_type": ref.media_type,
            }
        content = await self._read_payload(ref, call)
        value, fields = await _decode_content(content, call, name=str(uri))
        return _build_get_result(
            value, uri=uri, data=content.data, media_type=content.media_type, **fields
        )

    async def _read_payload(self, ref: PayloadRef, call: Call) -> Content:
        contents.check_size(ref.payload_bytes)
        data = await self._references.get_payloads(call.site).read_payload(ref)
        contents.check_size(len(data))
        return Content(data=data, media_type=ref.media_type)

    async def _read_content(self, uri: str, call: Call) -> Content:
        match _get_scheme(uri):
            case "artifact":
                return await self._read_payload(await self._get_latest(uri, call), call)
            case "file":
                path = await call.task_files.fetch_path(call.task_files.parse_name(uri))
                data = await asyncio.to_thread(_read_local_file, path)
                return Content(data=data, media_type="application/octet-stream")
            case "s3" | "gs":
                account, bucket, key = await self._get_bucket(uri, call)
                data = await self._buckets.read_object(
                    account, bucket, key, bytes_max=contents.BYTES_MAX
                )
                return Content(data=data, media_type="application/octet-stream")
            case "http" | "https":
                return await self._fetch_content(uri, call)
            case scheme:
                raise _build_unreadable_failure(scheme, uri)

    async def _fetch_content(self, uri: str, call: Call) -> Content:
        """Read over HTTP, under the http tool's own rules."""
        fields = {"url": uri, "method": "GET", "response_type": "bytes"}
        outcome = await self._http.run(
            structs.replace(call, kind="http", fields=fields, transaction=None)
        )
        if outcome.error is not None or outcome.data is UNSET:
            raise ToolFailure(outcome.error or build_error("parse", f"{uri} has no body"))
        headers = {name.lower(): value for name, value in outcome.data["headers"].items()}
        media_type = headers.get("content-type", "application/octet-stream")
        return Content(data=b64decode(outcome.data["body"]), media_type=media_type)

    async def _put_content(self, call: Call) -> dict[str, Any]:
        fields = call.fields
        if "data" not in fields:
            raise ToolFailure(
                build_error("validation", "action put needs 'data'", source="artifact")
            )
        uri = fields.get("uri")
        scheme = None if uri is None else _get_scheme(str(uri))
        content = await asyncio.to_thread(
            contents.encode_content,
            fields["data"],
            format_=fields.get("format"),
            compression=fields.get("compress"),
            # The payload store is read through the API; other places are the playbook's own.
            mask=self._mask.mask_bytes if scheme in {None, "artifact"} else None,
        )
        store = self._references.get_payloads(call.site)
        ref = None
        match scheme:
            case None | "artifact":
                ref = await store.store_payload(content.data, media_type=content.media_type)
                if scheme == "artifact":
                    await self._append_version(str(uri), ref, call)
            case "file":
                path = await call.task_files.fetch_path(call.task_files.parse_name(uri))
                # The next attempt's write must not come before that of one that was called off.
                await run_in_thread(write_file, path, content.data)
            case "s3" | "gs":
                account, bucket, key = await self._get_bucket(str(uri), call)
                await self._buckets.write_object(
                    account, bucket, key, content.data, media_type=content.media_type
                )
            case _:
                raise _build_unwritable_failure(scheme, str(uri))
        return {
            "uri": uri or (None if ref is None else ref.uri),
            "ref": None if ref is None else references.build_reference(ref),
            "size_bytes": len(content.data),
            "sha256": codec.digest_hex(content.data),
            "media_type": content.media_type,
        }

    async def _delete_content(self, call: Call) -> dict[str, Any]:
        result_ref = call.fields.get("result_ref") or _get_address(call)
        ref = references.find_reference(result_ref, call.site)
        if ref is not None:
            await self._references.get_payloads(call.site).delete_payload(ref)
            return {"uri": ref.uri, "deleted": True}
        uri = str(result_ref)
        match _get_scheme(uri):
            case "artifact":
                await self._append_version(uri, None, call)
            case "file":
                path = await call.task_files.fetch_path(call.task_files.parse_name(uri))
                await run_in_thread(path.unlink, missing_ok=True)
            case "s3" | "gs":
                account, bucket, key = await self._get_bucket(uri, call)
                await self._buckets.delete_object(account, bucket, key)
            case scheme:
                raise _build_unwritable_failure(scheme, uri)
        return {"uri": uri, "deleted": True}

    async def _get_latest(self, uri: str, call: Call) -> PayloadRef:
        """Return what the latest version of a name points to; raises `KeyError`."""
        store = self._references.get_payloads(call.site)
        names = await store.list_names(_build_versions_prefix(uri))
        data = await store.find_named(max(names)) if names else None
        pointer = None if data is None else codec.decode_json(data)
        if pointer is None:
            raise KeyError(uri)
        return codec.convert_value(pointer, PayloadRef)

    async def _append_version(self, uri: str, ref: PayloadRef | None, call: Call) -> None:
        """Add a version to a name; one that points nowhere says that it was deleted."""
        store = self._references.get_payloads(call.site)
        prefix = _build_versions_prefix(uri)
        data = codec.encode_json(ref)
        names = await store.list_names(prefix)
        first = int(max(names).rpartition("/")[2]) + 1 if names else 1
        for version in range(first, first + _VERSIONS_MAX):
            if await store.put_named(f"{prefix}{version:010d}", data) is None:
                return
        raise ToolFailure(
            build_error("storage_access", f"others keep writing {uri}", source="store")
        )

    async def _get_bucket(self, uri: str, call: Call) -> tuple[dict[str, Any], str, str]:
        place = await bucket_scripts.get_bucket_place(
            uri,
            call.auth,
            site=call.site,
            vault=self._vault,
            source="artifact",
            field="credential",
        )
        return place.account, place.bucket, place.key


async def _decode_content(content: Content, call: Call, *, name: str) -> tuple[Any, dict[str, Any]]:
    """Read a content beside the event loop: it may be large."""
    format_ = call.fields.get("format")
    return await asyncio.to_thread(contents.decode_content, content, format_=format_, name=name)


def _pick_input_fields(call: Call) -> dict[str, Any]:
    """Take fields of the kind that stand under `input`."""
    return {name: item for name, item in call.input.items() if name in tools.ARTIFACT.fields}


def _get_address(call: Call) -> Any:
    uri = call.fields.get("uri") or call.fields.get("result_ref")
    if uri is None:
        text = "name the content: 'result_ref' or 'uri'"
        raise ToolFailure(build_error("validation", text, source="artifact"))
    return uri


def _get_scheme(uri: str) -> str:
    return "file" if is_organization_name(uri) else urlsplit(uri).scheme or "file"


def _build_versions_prefix(uri: str) -> str:
    name = uri.removeprefix("artifact://")
    if not _NAME.fullmatch(name):
        text = f"{uri!r:.200} is no artifact's name: use artifact://<letters, digits, _ . - and />"
        raise ToolFailure(build_error("validation", text, source="artifact"))
    return f"artifacts/{name}/versions/"


def _build_unreadable_failure(scheme: str, uri: str) -> ToolFailure:
    way = _ELSEWHERE.get(scheme, "use noetl://, artifact://, file://, s3://, gs:// or http(s)://")
    return ToolFailure(build_error("config", f"{uri!r:.200} cannot be read here: {way}"))


def _build_unwritable_failure(scheme: str | None, uri: str) -> ToolFailure:
    way = _ELSEWHERE.get(str(scheme), "use artifact://, file://, s3:// or gs://, or no uri at all")
    if scheme in {"http", "https"}:
        way = "send it with kind http"
    return ToolFailure(build_error("config", f"{uri!r:.200} cannot be written here: {way}"))


def _build_get_result(
    value: Any, *, uri: Any, data: bytes, media_type: str, **fields: Any
) -> dict[str, Any]:
    return {
        "data": value,
        "uri": uri,
        "size_bytes": len(data),
        "sha256": codec.digest_hex(data),
        "media_type": media_type,
        **fields,
    }


def _read_local_file(path: Path) -> bytes:
    try:
        contents.check_size(path.stat().st_size)
        return path.read_bytes()
    except FileNotFoundError:
        raise KeyError(path.name) from None


def write_file(path: Path, data: bytes) -> None:
    """Write a file beside its place, then move it there in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    staging_path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        staging_path.replace(path)
    finally:
        staging_path.unlink(missing_ok=True)
