"""Loads the `script` of a task: code or SQL in a file, a bucket or at an address."""

import asyncio
from base64 import b64decode
from pathlib import Path, PurePosixPath
from typing import Any, Literal, assert_never, get_args
from urllib.parse import unquote, urlsplit

from msgspec import structs

from noetl_contracts import codec
from noetl_playbook.model import coercion
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.calls.call import Call, Timeout
from noetl_worker.tools.http.http_tool import HttpTool
from noetl_worker.tools.scripts.bucket_scripts import BucketScripts

DIRECTORY_SETTING = "NOETL_WORKER_SCRIPT_DIRECTORY"
SCRIPT_BYTES_MAX = 2 * 1024 * 1024
_NAME_CHARACTERS_MAX = 200

Type = Literal["file", "http", "s3", "gcs", "inline"]
_TYPE_BY_SCHEME: dict[str, Type] = {
    "": "file",
    "file": "file",
    "http": "http",
    "https": "http",
    "s3": "s3",
    "gs": "gcs",
}


class ScriptLoader:
    """Reads scripts from the deployment's script directory, buckets, HTTP, or the task itself."""

    def __init__(self, *, directory: str, http: HttpTool, buckets: BucketScripts) -> None:
        self._directory = Path(directory) if directory else None
        self._http = http
        self._buckets = buckets

    async def load_text(self, script: Any, call: Call) -> str:
        """Return the text that a task's `script` means; raises `ToolFailure`.

        It is taken as it is: templates in it are not rendered.
        """
        if not isinstance(script, dict):
            raise _build_invalid_failure("must be a mapping with 'uri' or 'source'")
        source = script.get("source") or {}
        if not isinstance(source, dict):
            raise _build_invalid_failure("'source' must be a mapping")
        data = await self._read_script(_get_source_type(script, source), script, source, call)
        if len(data) > SCRIPT_BYTES_MAX:
            text = f"a script has at most {SCRIPT_BYTES_MAX} bytes, this one has {len(data)}"
            raise ToolFailure(build_error("limit", text, code="SCRIPT_BYTES"))
        _check_digest(data, script.get("sha256"))
        try:
            return data.decode()
        except UnicodeDecodeError as problem:
            raise _build_invalid_failure(f"the script is not UTF-8 text: {problem}") from problem

    async def attach_query(self, call: Call) -> Call:
        """Put SQL from elsewhere into a call; raises `ToolFailure`."""
        script = call.fields.get("script")
        if script is None:
            return call
        text = await self.load_text(script, call)
        return structs.replace(call, fields={**call.fields, "query": text, "query_b64": None})

    async def _read_script(
        self, kind: Type, script: dict[str, Any], source: dict[str, Any], call: Call
    ) -> bytes:
        match kind:
            case "inline":
                return _decode_inline(source)
            case "file":
                return await asyncio.to_thread(self._read_file, script.get("uri"))
            case "http":
                return await self._fetch_script(
                    source.get("endpoint") or script.get("uri"), source, call
                )
            case "s3" | "gcs":
                uri = source.get("endpoint") or script.get("uri")
                return await self._buckets.read_script(
                    uri, source.get("auth"), call, bytes_max=SCRIPT_BYTES_MAX
                )
            case _:
                assert_never(kind)

    def _read_file(self, uri: Any) -> bytes:
        if self._directory is None:
            text = f"scripts cannot be read from files: {DIRECTORY_SETTING} names no directory"
            raise ToolFailure(build_error("config", text))
        path = uri
        if isinstance(uri, str) and uri.startswith("file:"):
            path = unquote(urlsplit(uri).path).lstrip("/")
        file = _path_within(self._directory, path)
        try:
            with file.open("rb") as stream:
                return stream.read(SCRIPT_BYTES_MAX + 1)
        except OSError as problem:
            text = f"script '{uri}' cannot be read: {problem.strerror}"
            raise ToolFailure(build_error("not_found", text)) from problem

    async def _fetch_script(self, url: Any, source: dict[str, Any], call: Call) -> bytes:
        fields = {
            "url": url,
            "method": source.get("method"),
            "headers": source.get("headers"),
            "response_type": "bytes",
        }
        timeout = call.timeout
        if (timeout_value := source.get("timeout")) is not None:
            total_s = coercion.coerce_duration_s(timeout_value)
            if total_s is None:
                raise _build_invalid_failure(
                    f"'source.timeout': {timeout_value!r:.80} is not a duration"
                )
            timeout = Timeout(total=total_s)
        request = structs.replace(
            call,
            kind="http",
            fields=fields,
            input={},
            auth=source.get("auth"),
            timeout=timeout,
            transaction=None,
            may_share=False,
        )
        outcome = await self._http.run(request)
        if outcome.error is not None:
            message = f"the script cannot be fetched: {outcome.error.message}"
            raise ToolFailure(structs.replace(outcome.error, message=message))
        assert isinstance(outcome.data, dict), "an answer without error is described"
        return b64decode(outcome.data["body"])


def name_source(call: Call) -> str:
    """Name the code of a task as tracebacks do: a script by its file, other code by its step.

    The name is relative, so that it is no file of Python's own.
    """
    script = call.fields.get("script")
    uri = script.get("uri") if isinstance(script, dict) else None
    if not isinstance(uri, str) or not uri:
        return f"<code of step {call.site.step}>"
    if urlsplit(uri).scheme or uri.startswith("/"):
        # An address may hold what is for nobody to see.
        uri = PurePosixPath(unquote(urlsplit(uri).path)).name
    return uri[:_NAME_CHARACTERS_MAX] or "<script>"


def _path_within(root: Path, uri: Any) -> Path:
    """Resolve a script's path, links included; raises `ToolFailure` when it leads out."""
    if not isinstance(uri, str) or not uri or "\0" in uri:
        text = f"field 'script.uri' must be a path, not {uri!r}"
        raise ToolFailure(build_error("validation", text))
    path = (root / uri).resolve()
    if not path.is_relative_to(root.resolve()):
        text = f"field 'script.uri': '{uri}' leads out of the directory that tasks may use"
        raise ToolFailure(build_error("config", text))
    return path


def _get_source_type(script: dict[str, Any], source: dict[str, Any]) -> Type:
    """Tell where a script is: as its type says, else as its address looks."""
    type_name = source.get("type")
    if type_name is not None and type_name not in get_args(Type):
        raise _build_invalid_failure(
            f"'{type_name}' is no type of source: use {', '.join(get_args(Type))}"
        )
    if type_name is not None:
        source_type: Type = type_name
        return source_type
    if "code" in source or "code_b64" in source:
        return "inline"
    uri = source.get("endpoint") or script.get("uri")
    scheme = urlsplit(uri).scheme if isinstance(uri, str) else None
    if scheme not in _TYPE_BY_SCHEME:
        raise _build_invalid_failure("needs 'uri', or 'source' with a type")
    return _TYPE_BY_SCHEME[scheme]


def _decode_inline(source: dict[str, Any]) -> bytes:
    encoded_code, code = source.get("code_b64"), source.get("code")
    if isinstance(encoded_code, str):
        try:
            return b64decode(encoded_code, validate=True)
        except ValueError as problem:
            raise _build_invalid_failure(f"'source.code_b64' is not base64: {problem}") from problem
    if not isinstance(code, str):
        raise _build_invalid_failure("a source of type inline needs 'code'")
    return code.encode()


def _check_digest(data: bytes, expected_digest: Any) -> None:
    if expected_digest is None:
        return
    digest = codec.digest_hex(data)
    if str(expected_digest).lower().removeprefix("sha256:") != digest.removeprefix("sha256:"):
        text = (
            f"the script is not the one that was meant: its sha256 is {digest}, not "
            f"{expected_digest}"
        )
        raise ToolFailure(build_error("validation", text))


def _build_invalid_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", f"field 'script': {text}"))
