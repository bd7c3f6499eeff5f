"""One keychain entry, by its kind: from rendered fields to the fields that templates see."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.result import ABSENT, find_at_path
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain import aws_secrets
from noetl_worker.keychain.credential_vault import Credential, CredentialVault
from noetl_worker.keychain.tokens import BearerTokens, build_client_form

KIND_ALIASES = {"postgres_credential": "credential", "secrets": "secret_manager"}
# What these give depends on nothing outside, or is remembered by the vault: not kept here.
AT_HAND = frozenset({"static", "bearer", "credential"})
_CLOUDS = frozenset({"gcp", "azure"})
_SECRET_BYTES_MAX = 64 * 1024
_REQUEST_FIELDS = frozenset({"method", "headers", "params", "json", "body", "form", "verify_ssl"})


class RenderedEntry(Struct, frozen=True, kw_only=True):
    """An entry whose templates are rendered."""

    name: str
    kind: str
    fields: dict[str, Any]


class ResolvedEntry(Struct, frozen=True, kw_only=True):
    """An entry's fields; `kind` is the type of credential that they make, if one is known.

    `expires_at` is on the monotonic clock.
    """

    fields: dict[str, Any]
    kind: str | None = None
    expires_at: float | None = None


class EntrySources(Struct, frozen=True, kw_only=True):
    """Where entries come from."""

    vault: CredentialVault
    tokens: BearerTokens
    environ: Mapping[str, str]
    # Below it are the files that entries may read.
    folder: Path | None = None


async def resolve_entry(
    entry: RenderedEntry, *, sources: EntrySources, site: UnitScope
) -> ResolvedEntry:
    """Resolve an entry; raises `ToolFailure`."""
    match KIND_ALIASES.get(entry.kind, entry.kind):
        case "static":
            return ResolvedEntry(fields=_get_mapping(entry, "map"))
        case "bearer":
            token = _get_text(entry, "token")
            return ResolvedEntry(fields={"token": token}, kind="bearer")
        case "credential":
            return await _resolve_stored(entry, sources, site)
        case "secret_manager":
            return await _resolve_managed(entry, sources, site)
        case "oauth2":
            return await _resolve_granted(entry, sources, site)
        case "http":
            return await _resolve_fetched(entry, sources, site)
        case "google_id_token":
            raise _build_entry_failure(entry, "this worker has no service account to sign with")
        case _:
            raise _build_entry_failure(entry, f"kind '{entry.kind[:40]}' is not known")


async def _resolve_stored(
    entry: RenderedEntry, sources: EntrySources, site: UnitScope
) -> ResolvedEntry:
    name = entry.fields.get("credential") or entry.name
    credential = await sources.vault.get_stored(str(name), site)
    return ResolvedEntry(fields=credential.fields, kind=credential.kind)


async def _resolve_managed(
    entry: RenderedEntry, sources: EntrySources, site: UnitScope
) -> ResolvedEntry:
    provider = entry.fields.get("provider")
    mapping = _get_mapping(entry, "map")
    if provider == "env":
        return ResolvedEntry(
            fields={field: _read_variable(entry, sources, mapping[field]) for field in mapping}
        )
    if provider == "file":
        return ResolvedEntry(
            fields={
                field: _read_secret_file(entry, sources, str(mapping[field])) for field in mapping
            }
        )
    if provider == "vault":
        return await _resolve_from_vault(entry, mapping, sources, site)
    if provider in aws_secrets.PROVIDERS:
        return await _resolve_from_aws(entry, provider, mapping, sources, site)
    if provider in _CLOUDS:
        raise _build_entry_failure(
            entry,
            f"provider '{provider}' is not available on this worker: "
            "use aws, aws_ssm, vault, env, file or http",
        )
    raise _build_entry_failure(
        entry,
        f"provider {str(provider)[:40]!r} is not known: use aws, aws_ssm, vault, env or file",
    )


def _read_variable(entry: RenderedEntry, sources: EntrySources, name: Any) -> str:
    environ = sources.environ.get(str(name))
    if environ is None:
        raise _build_entry_failure(
            entry,
            f"the worker shows no variable {name!s}: set it, and list it in "
            "NOETL_WORKER_SECRET_ENV",
        )
    return environ


def _read_secret_file(entry: RenderedEntry, sources: EntrySources, name: str) -> str:
    """Read a file below the folder that the operator shows, without its last line break."""
    if sources.folder is None:
        raise _build_entry_failure(
            entry, "the worker shows no folder: set NOETL_WORKER_SECRET_FOLDER"
        )
    # A link may lead elsewhere, as those of mounted secrets do: within the folder.
    folder = sources.folder.resolve()
    file = (folder / name).resolve()
    if not file.is_relative_to(folder):
        raise _build_entry_failure(entry, f"{name!r:.120} is not below NOETL_WORKER_SECRET_FOLDER")
    try:
        with file.open("rb") as stream:
            data = stream.read(_SECRET_BYTES_MAX + 1)
    except OSError as problem:
        raise _build_entry_failure(
            entry, f"file {name!r:.120}: {problem.strerror or problem}"
        ) from problem
    if len(data) > _SECRET_BYTES_MAX:
        raise _build_entry_failure(
            entry, f"file {name!r:.120} has more than {_SECRET_BYTES_MAX} bytes"
        )
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as problem:
        raise _build_entry_failure(entry, f"file {name!r:.120} is no text") from problem


async def _resolve_from_aws(
    entry: RenderedEntry,
    provider: str,
    place_by_field: dict[str, Any],
    sources: EntrySources,
    site: UnitScope,
) -> ResolvedEntry:
    auth = entry.fields.get("auth")
    if auth is None:
        raise _build_entry_failure(
            entry, "it needs 'auth', the name of a stored credential of type aws"
        )
    credential = await sources.vault.resolve_auth(auth, site)
    if credential.kind != aws_secrets.CREDENTIAL_TYPE or not credential.version:
        text = f"credential '{credential.name}' is of type '{credential.kind}'"
        raise _build_entry_failure(entry, f"{text}: name a stored one of type aws")
    fields = await aws_secrets.read_secrets(provider, place_by_field, credential, entry=entry.name)
    return ResolvedEntry(fields=fields)


async def _resolve_from_vault(
    entry: RenderedEntry, place_by_field: dict[str, Any], sources: EntrySources, site: UnitScope
) -> ResolvedEntry:
    """Read `path#key` from a server that speaks as HashiCorp Vault does."""
    credential = await sources.vault.resolve_auth(entry.fields.get("auth"), site)
    address, token = credential.fields.get("url"), credential.fields.get("token")
    if not address or not token:
        raise _build_entry_failure(entry, f"credential '{credential.name}' needs url and token")
    fields: dict[str, Any] = {}
    body_by_path: dict[str, Any] = {}
    for field, place in place_by_field.items():
        path, _, key = str(place).partition("#")
        if path not in body_by_path:
            request = {
                "url": f"{str(address).rstrip('/')}/v1/{path.lstrip('/')}",
                "headers": {"X-Vault-Token": token},
                "follow_redirects": False,
            }
            body_by_path[path] = await sources.tokens.fetch_json(
                request, credential=None, site=site, entry=entry.name
            )
        fields[field] = _get_secret(entry, body_by_path[path], key or field)
    return ResolvedEntry(fields=fields)


def _get_secret(entry: RenderedEntry, body: Any, key: str) -> Any:
    # The second version of its key-value engine wraps the data once more.
    for path in (f"data.data.{key}", f"data.{key}"):
        secret = find_at_path(body, path)
        if secret is not ABSENT:
            return secret
    raise _build_entry_failure(entry, f"the secret has no key '{key}'")


async def _resolve_granted(
    entry: RenderedEntry, sources: EntrySources, site: UnitScope
) -> ResolvedEntry:
    credential = await _resolve_auth(entry, sources, site)
    fields = {} if credential is None else credential.fields
    url = entry.fields.get("endpoint") or entry.fields.get("url") or fields.get("token_url")
    if not isinstance(url, str):
        raise _build_entry_failure(entry, "it needs an endpoint, or auth with a token_url")
    request = _build_request(entry, url, method="POST")
    data = entry.fields.get("data")
    if credential is not None and credential.kind in {"oauth2", "generic"}:
        data = {**build_client_form(fields), **(data if isinstance(data, dict) else {})}
        credential = None
    request |= _build_body(data, request.get("headers"))
    token_grant = await sources.tokens.request_grant(
        request, credential=credential, site=site, entry=entry.name
    )
    return ResolvedEntry(
        fields=token_grant.fields, kind="bearer", expires_at=token_grant.expires_at
    )


async def _resolve_fetched(
    entry: RenderedEntry, sources: EntrySources, site: UnitScope
) -> ResolvedEntry:
    url = entry.fields.get("url") or entry.fields.get("endpoint")
    if not isinstance(url, str):
        raise _build_entry_failure(entry, "it needs a url")
    credential = await _resolve_auth(entry, sources, site)
    request = _build_request(entry, url, method="GET")
    if "data" in entry.fields:
        request |= _build_body(entry.fields["data"], request.get("headers"))
    if credential is not None and credential.kind == "oauth2":
        credential = await sources.tokens.get_bearer(credential, site)
    body = await sources.tokens.fetch_json(
        request, credential=credential, site=site, entry=entry.name
    )
    mapping = _get_mapping(entry, "map")
    fields = {field: find_at_path(body, str(path)) for field, path in mapping.items()}
    absent_fields = [field for field, value in fields.items() if value is ABSENT]
    if absent_fields:
        raise _build_entry_failure(entry, f"the answer of {url} lacks {', '.join(absent_fields)}")
    return ResolvedEntry(fields=fields)


async def _resolve_auth(
    entry: RenderedEntry, sources: EntrySources, site: UnitScope
) -> Credential | None:
    auth = entry.fields.get("auth")
    return None if auth is None else await sources.vault.resolve_auth(auth, site)


def _build_request(entry: RenderedEntry, url: str, *, method: str) -> dict[str, Any]:
    fields = {key: item for key, item in entry.fields.items() if key in _REQUEST_FIELDS}
    return {"method": method, **fields, "url": url}


def _build_body(data: Any, headers: Any) -> dict[str, Any]:
    """Send a mapping as a form unless the entry's headers say JSON."""
    if data is None:
        return {}
    header_fields = headers if isinstance(headers, dict) else {}
    media_type = next((str(v) for k, v in header_fields.items() if k.lower() == "content-type"), "")
    if isinstance(data, dict) and "json" not in media_type:
        return {"form": data}
    return {"json": data} if isinstance(data, dict | list) else {"body": data}


def _get_mapping(entry: RenderedEntry, field: str) -> dict[str, Any]:
    mapping = entry.fields.get(field)
    if not isinstance(mapping, dict) or not mapping:
        raise _build_entry_failure(entry, f"it needs a mapping '{field}'")
    return mapping


def _get_text(entry: RenderedEntry, field: str) -> str:
    text = entry.fields.get(field)
    if not isinstance(text, str) or not text:
        raise _build_entry_failure(entry, f"it needs a text '{field}'")
    return text


def _build_entry_failure(entry: RenderedEntry, reason: str) -> ToolFailure:
    text = f"keychain entry '{entry.name}' of kind {entry.kind} cannot be resolved: {reason}"
    return ToolFailure(build_error("config", text))
