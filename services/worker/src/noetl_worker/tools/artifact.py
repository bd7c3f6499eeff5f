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

from noetl_chassis.blocking_work import in_thread
from noetl_contracts import codec
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.payloads import PayloadRef
from noetl_playbook import tools as kinds
from noetl_storage.ports import Buckets
from noetl_worker.domain.failures import ToolFailure, failure, of_file
from noetl_worker.domain.masking import Mask
from noetl_worker.keys.credential_vault import Vault
from noetl_worker.own_time import own_time
from noetl_worker.tools import bucket_places, contents, references
from noetl_worker.tools.call import Call, Outcome
from noetl_worker.tools.contents import Content
from noetl_worker.tools.file_names import is_organization_name
from noetl_worker.tools.http import HttpTool
from noetl_worker.tools.references import References

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
        references_: References,
        buckets: Buckets,
        http: HttpTool,
        vault: Vault,
        mask: Mask,
    ) -> None:
        self._references = references_
        self._buckets = buckets
        self._http = http
        self._vault = vault
        self._mask = mask

    async def run(self, call: Call) -> Outcome:
        """Run one action."""
        fields = {**_from_input(call), **call.fields}
        call = structs.replace(call, fields=fields)
        try:
            async with own_time(call.timeout.total):
                match fields.get("action"):
                    case "get":
                        return Outcome(data=await self._get(call))
                    case "put":
                        return Outcome(data=await self._put(call))
                    case "delete":
                        return Outcome(data=await self._delete(call))
            text = f"field 'action' is {fields.get('action')!r:.40}: use {', '.join(_ACTIONS)}"
            return Outcome(error=failure("validation", text, source="artifact"))
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except TimeoutError:
            text = f"the content was not there within {call.timeout.total:g} s"
            return Outcome(error=failure("timeout", text, source="artifact"))
        except KeyError as problem:
            text = f"there is nothing at {_address(call)}"
            return Outcome(error=failure("not_found", text, details={"key": str(problem)}))
        except (Permanent, ValueError) as problem:
            return Outcome(error=failure("config", str(problem), source="artifact"))
        except OSError as problem:
            return Outcome(error=of_file(problem, str(_address(call)), source="artifact"))
        except Retryable as problem:
            return Outcome(error=failure("storage_access", str(problem), source="artifact"))

    async def _get(self, call: Call) -> dict[str, Any]:
        given = call.fields.get("result_ref")
        if given is None:
            given = _address(call)
        if references.is_reference(given):
            return await self._get_referred(given, call)
        if not isinstance(given, str):
            # A result that was small enough to travel is its own content.
            return _got(given, uri=None, data=codec.encode(given), media_type="application/json")
        content = await self._read(given, call)
        value, more = await _decoded(content, call, name=given)
        return _got(value, uri=given, data=content.data, media_type=content.media_type, **more)

    async def _get_referred(self, given: Any, call: Call) -> dict[str, Any]:
        ref = references.find(given, call.site)
        assert ref is not None, "the caller has asked whether it is a reference"
        uri = given["ref"] if isinstance(given, dict) else given
        if references.names_result(given):
            return {
                "data": await self._references.value(given, call.site),
                "uri": uri,
                "size_bytes": ref.payload_bytes,
                "sha256": ref.sha256,
                "media_type": ref.media_type,
            }
        content = await self._read_payload(ref, call)
        value, more = await _decoded(content, call, name=str(uri))
        return _got(value, uri=uri, data=content.data, media_type=content.media_type, **more)

    async def _read_payload(self, ref: PayloadRef, call: Call) -> Content:
        contents.check_size(ref.payload_bytes)
        data = await self._references.payloads(call.site).read(ref)
        contents.check_size(len(data))
        return Content(data=data, media_type=ref.media_type)

    async def _read(self, uri: str, call: Call) -> Content:
        match _scheme(uri):
            case "artifact":
                return await self._read_payload(await self._latest(uri, call), call)
            case "file":
                path = await call.files.path(call.files.parse_name(uri))
                data = await asyncio.to_thread(_read_file, path)
                return Content(data=data, media_type="application/octet-stream")
            case "s3" | "gs":
                account, bucket, key = await self._bucket(uri, call)
                data = await self._buckets.read(account, bucket, key, bytes_max=contents.BYTES_MAX)
                return Content(data=data, media_type="application/octet-stream")
            case "http" | "https":
                return await self._fetch(uri, call)
            case scheme:
                raise _unknown(scheme, uri)

    async def _fetch(self, uri: str, call: Call) -> Content:
        """Read over HTTP, under the http tool's own rules."""
        fields = {"url": uri, "method": "GET", "response_type": "bytes"}
        outcome = await self._http.run(
            structs.replace(call, kind="http", fields=fields, transaction=None)
        )
        if outcome.error is not None or outcome.data is UNSET:
            raise ToolFailure(outcome.error or failure("parse", f"{uri} has no body"))
        headers = {name.lower(): value for name, value in outcome.data["headers"].items()}
        media_type = headers.get("content-type", "application/octet-stream")
        return Content(data=b64decode(outcome.data["body"]), media_type=media_type)

    async def _put(self, call: Call) -> dict[str, Any]:
        fields = call.fields
        if "data" not in fields:
            raise ToolFailure(failure("validation", "action put needs 'data'", source="artifact"))
        uri = fields.get("uri")
        scheme = None if uri is None else _scheme(str(uri))
        content = await asyncio.to_thread(
            contents.encode,
            fields["data"],
            format_=fields.get("format"),
            compression=fields.get("compress"),
            # The payload store is read through the API; other places are the playbook's own.
            mask=self._mask.data if scheme in {None, "artifact"} else None,
        )
        store = self._references.payloads(call.site)
        ref = None
        match scheme:
            case None | "artifact":
                ref = await store.store(content.data, media_type=content.media_type)
                if scheme == "artifact":
                    await self._point(str(uri), ref, call)
            case "file":
                path = await call.files.path(call.files.parse_name(uri))
                # The next attempt's write must not come before that of one that was called off.
                await in_thread(write_file, path, content.data)
            case "s3" | "gs":
                account, bucket, key = await self._bucket(str(uri), call)
                await self._buckets.write(
                    account, bucket, key, content.data, media_type=content.media_type
                )
            case _:
                raise _unwritable(scheme, str(uri))
        return {
            "uri": uri or (None if ref is None else ref.uri),
            "ref": None if ref is None else _as_mapping(ref),
            "size_bytes": len(content.data),
            "sha256": codec.digest(content.data),
            "media_type": content.media_type,
        }

    async def _delete(self, call: Call) -> dict[str, Any]:
        given = call.fields.get("result_ref") or _address(call)
        ref = references.find(given, call.site)
        if ref is not None:
            await self._references.payloads(call.site).delete(ref)
            return {"uri": ref.uri, "deleted": True}
        uri = str(given)
        match _scheme(uri):
            case "artifact":
                await self._point(uri, None, call)
            case "file":
                path = await call.files.path(call.files.parse_name(uri))
                await in_thread(path.unlink, missing_ok=True)
            case "s3" | "gs":
                account, bucket, key = await self._bucket(uri, call)
                await self._buckets.delete(account, bucket, key)
            case scheme:
                raise _unwritable(scheme, uri)
        return {"uri": uri, "deleted": True}

    async def _latest(self, uri: str, call: Call) -> PayloadRef:
        """Return what the latest version of a name points to; raises `KeyError`."""
        store = self._references.payloads(call.site)
        names = await store.list_names(_folder_of(uri))
        data = await store.find_named(max(names)) if names else None
        pointer = None if data is None else codec.decode(data)
        if pointer is None:
            raise KeyError(uri)
        return codec.convert(pointer, PayloadRef)

    async def _point(self, uri: str, ref: PayloadRef | None, call: Call) -> None:
        """Add a version to a name; one that points nowhere says that it was deleted."""
        store = self._references.payloads(call.site)
        prefix = _folder_of(uri)
        data = codec.encode(ref)
        names = await store.list_names(prefix)
        first = int(max(names).rpartition("/")[2]) + 1 if names else 1
        for version in range(first, first + _VERSIONS_MAX):
            if await store.put_named(f"{prefix}{version:010d}", data) is None:
                return
        raise ToolFailure(failure("storage_access", f"others keep writing {uri}", source="store"))

    async def _bucket(self, uri: str, call: Call) -> tuple[dict[str, Any], str, str]:
        place = await bucket_places.find_place(
            uri,
            call.auth,
            site=call.site,
            vault=self._vault,
            source="artifact",
            field="credential",
        )
        return place.account, place.bucket, place.key


async def _decoded(content: Content, call: Call, *, name: str) -> tuple[Any, dict[str, Any]]:
    """Read a content beside the event loop: it may be large."""
    format_ = call.fields.get("format")
    return await asyncio.to_thread(contents.decode, content, format_=format_, name=name)


def _from_input(call: Call) -> dict[str, Any]:
    """Take fields of the kind that stand under `input`."""
    return {name: item for name, item in call.input.items() if name in kinds.ARTIFACT.fields}


def _address(call: Call) -> Any:
    found = call.fields.get("uri") or call.fields.get("result_ref")
    if found is None:
        text = "name the content: 'result_ref' or 'uri'"
        raise ToolFailure(failure("validation", text, source="artifact"))
    return found


def _scheme(uri: str) -> str:
    return "file" if is_organization_name(uri) else urlsplit(uri).scheme or "file"


def _folder_of(uri: str) -> str:
    name = uri.removeprefix("artifact://")
    if not _NAME.fullmatch(name):
        text = f"{uri!r:.200} is no artifact's name: use artifact://<letters, digits, _ . - and />"
        raise ToolFailure(failure("validation", text, source="artifact"))
    return f"artifacts/{name}/versions/"


def _unknown(scheme: str, uri: str) -> ToolFailure:
    way = _ELSEWHERE.get(scheme, "use noetl://, artifact://, file://, s3://, gs:// or http(s)://")
    return ToolFailure(failure("config", f"{uri!r:.200} cannot be read here: {way}"))


def _unwritable(scheme: str | None, uri: str) -> ToolFailure:
    way = _ELSEWHERE.get(str(scheme), "use artifact://, file://, s3:// or gs://, or no uri at all")
    if scheme in {"http", "https"}:
        way = "send it with kind http"
    return ToolFailure(failure("config", f"{uri!r:.200} cannot be written here: {way}"))


def _as_mapping(ref: PayloadRef) -> dict[str, Any]:
    return {
        "kind": "result_ref",
        "ref": ref.uri,
        "store": "auto",
        "bytes": ref.payload_bytes,
        "sha256": ref.sha256,
        "media_type": ref.media_type,
    }


def _got(value: Any, *, uri: Any, data: bytes, media_type: str, **more: Any) -> dict[str, Any]:
    return {
        "data": value,
        "uri": uri,
        "size_bytes": len(data),
        "sha256": codec.digest(data),
        "media_type": media_type,
        **more,
    }


def _read_file(path: Path) -> bytes:
    try:
        contents.check_size(path.stat().st_size)
        return path.read_bytes()
    except FileNotFoundError:
        raise KeyError(path.name) from None


def write_file(path: Path, data: bytes) -> None:
    """Write a file beside its place, then move it there in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    staged = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
