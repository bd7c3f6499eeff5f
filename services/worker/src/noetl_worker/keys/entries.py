"""One keychain entry, by its kind: from rendered fields to the fields that templates see."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.result import ABSENT, at_path
from noetl_worker.domain.sites import Site
from noetl_worker.keys import aws_secrets
from noetl_worker.keys.credential_vault import Credential, Vault
from noetl_worker.keys.tokens import Tokens, client_form

KIND_ALIASES = {"postgres_credential": "credential", "secrets": "secret_manager"}
# What these give depends on nothing outside, or is remembered by the vault: not kept here.
AT_HAND = frozenset({"static", "bearer", "credential"})
_CLOUDS = frozenset({"gcp", "azure"})
_SECRET_BYTES_MAX = 64 * 1024
_REQUEST_FIELDS = frozenset({"method", "headers", "params", "json", "body", "form", "verify_ssl"})


class Entry(Struct, frozen=True, kw_only=True):
    """An entry whose templates are rendered."""

    name: str
    kind: str
    fields: dict[str, Any]


class Found(Struct, frozen=True, kw_only=True):
    """An entry's fields; `kind` is the type of credential that they make, if one is known.

    `expires_at` is on the monotonic clock.
    """

    fields: dict[str, Any]
    kind: str | None = None
    expires_at: float | None = None


class Sources(Struct, frozen=True, kw_only=True):
    """Where entries come from."""

    vault: Vault
    tokens: Tokens
    environ: Mapping[str, str]
    # Below it are the files that entries may read.
    folder: Path | None = None


async def find(entry: Entry, *, sources: Sources, site: Site) -> Found:
    """Resolve an entry; raises `ToolFailure`."""
    match KIND_ALIASES.get(entry.kind, entry.kind):
        case "static":
            return Found(fields=_mapping(entry, "map"))
        case "bearer":
            token = _text(entry, "token")
            return Found(fields={"token": token}, kind="bearer")
        case "credential":
            return await _stored(entry, sources, site)
        case "secret_manager":
            return await _managed(entry, sources, site)
        case "oauth2":
            return await _granted(entry, sources, site)
        case "http":
            return await _fetched(entry, sources, site)
        case "google_id_token":
            raise _refused(entry, "this worker has no service account to sign with")
        case _:
            raise _refused(entry, f"kind '{entry.kind[:40]}' is not known")


async def _stored(entry: Entry, sources: Sources, site: Site) -> Found:
    name = entry.fields.get("credential") or entry.name
    credential = await sources.vault.stored(str(name), site)
    return Found(fields=credential.fields, kind=credential.kind)


async def _managed(entry: Entry, sources: Sources, site: Site) -> Found:
    provider = entry.fields.get("provider")
    wanted = _mapping(entry, "map")
    if provider == "env":
        return Found(fields={field: _variable(entry, sources, wanted[field]) for field in wanted})
    if provider == "file":
        return Found(fields={field: _file(entry, sources, str(wanted[field])) for field in wanted})
    if provider == "vault":
        return await _from_vault(entry, wanted, sources, site)
    if provider in aws_secrets.PROVIDERS:
        return await _from_aws(entry, provider, wanted, sources, site)
    if provider in _CLOUDS:
        raise _refused(
            entry,
            f"provider '{provider}' is not available on this worker: "
            "use aws, aws_ssm, vault, env, file or http",
        )
    raise _refused(
        entry,
        f"provider {str(provider)[:40]!r} is not known: use aws, aws_ssm, vault, env or file",
    )


def _variable(entry: Entry, sources: Sources, name: Any) -> str:
    found = sources.environ.get(str(name))
    if found is None:
        raise _refused(
            entry,
            f"the worker shows no variable {name!s}: set it, and list it in "
            "NOETL_WORKER_SECRET_ENV",
        )
    return found


def _file(entry: Entry, sources: Sources, name: str) -> str:
    """Read a file below the folder that the operator shows, without its last line break."""
    if sources.folder is None:
        raise _refused(entry, "the worker shows no folder: set NOETL_WORKER_SECRET_FOLDER")
    # A link may lead elsewhere, as those of mounted secrets do: within the folder.
    folder = sources.folder.resolve()
    file = (folder / name).resolve()
    if not file.is_relative_to(folder):
        raise _refused(entry, f"{name!r:.120} is not below NOETL_WORKER_SECRET_FOLDER")
    try:
        with file.open("rb") as opened:
            data = opened.read(_SECRET_BYTES_MAX + 1)
    except OSError as problem:
        raise _refused(entry, f"file {name!r:.120}: {problem.strerror or problem}") from problem
    if len(data) > _SECRET_BYTES_MAX:
        raise _refused(entry, f"file {name!r:.120} has more than {_SECRET_BYTES_MAX} bytes")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as problem:
        raise _refused(entry, f"file {name!r:.120} is no text") from problem


async def _from_aws(
    entry: Entry, provider: str, wanted: dict[str, Any], sources: Sources, site: Site
) -> Found:
    auth = entry.fields.get("auth")
    if auth is None:
        raise _refused(entry, "it needs 'auth', the name of a stored credential of type aws")
    credential = await sources.vault.resolve(auth, site)
    if credential.kind != aws_secrets.CREDENTIAL_TYPE or not credential.version:
        text = f"credential '{credential.name}' is of type '{credential.kind}'"
        raise _refused(entry, f"{text}: name a stored one of type aws")
    fields = await aws_secrets.read_secrets(provider, wanted, credential, entry=entry.name)
    return Found(fields=fields)


async def _from_vault(entry: Entry, wanted: dict[str, Any], sources: Sources, site: Site) -> Found:
    """Read `path#key` from a server that speaks as HashiCorp Vault does."""
    credential = await sources.vault.resolve(entry.fields.get("auth"), site)
    address, token = credential.fields.get("url"), credential.fields.get("token")
    if not address or not token:
        raise _refused(entry, f"credential '{credential.name}' needs url and token")
    fields: dict[str, Any] = {}
    body_by_path: dict[str, Any] = {}
    for field, place in wanted.items():
        path, _, key = str(place).partition("#")
        if path not in body_by_path:
            request = {
                "url": f"{str(address).rstrip('/')}/v1/{path.lstrip('/')}",
                "headers": {"X-Vault-Token": token},
                "follow_redirects": False,
            }
            body_by_path[path] = await sources.tokens.fetched(
                request, credential=None, site=site, what=entry.name
            )
        fields[field] = _secret_in(entry, body_by_path[path], key or field)
    return Found(fields=fields)


def _secret_in(entry: Entry, body: Any, key: str) -> Any:
    # The second version of its key-value engine wraps the data once more.
    for path in (f"data.data.{key}", f"data.{key}"):
        found = at_path(body, path)
        if found is not ABSENT:
            return found
    raise _refused(entry, f"the secret has no key '{key}'")


async def _granted(entry: Entry, sources: Sources, site: Site) -> Found:
    credential = await _auth(entry, sources, site)
    own = {} if credential is None else credential.fields
    url = entry.fields.get("endpoint") or entry.fields.get("url") or own.get("token_url")
    if not isinstance(url, str):
        raise _refused(entry, "it needs an endpoint, or auth with a token_url")
    request = _request(entry, url, method="POST")
    data = entry.fields.get("data")
    if credential is not None and credential.kind in {"oauth2", "generic"}:
        data = {**client_form(own), **(data if isinstance(data, dict) else {})}
        credential = None
    request |= _body(data, request.get("headers"))
    kept = await sources.tokens.grant(request, credential=credential, site=site, what=entry.name)
    return Found(fields=kept.fields, kind="bearer", expires_at=kept.expires_at)


async def _fetched(entry: Entry, sources: Sources, site: Site) -> Found:
    url = entry.fields.get("url") or entry.fields.get("endpoint")
    if not isinstance(url, str):
        raise _refused(entry, "it needs a url")
    credential = await _auth(entry, sources, site)
    request = _request(entry, url, method="GET")
    if "data" in entry.fields:
        request |= _body(entry.fields["data"], request.get("headers"))
    if credential is not None and credential.kind == "oauth2":
        credential = await sources.tokens.bearer(credential, site)
    body = await sources.tokens.fetched(request, credential=credential, site=site, what=entry.name)
    wanted = _mapping(entry, "map")
    fields = {field: at_path(body, str(path)) for field, path in wanted.items()}
    absent = [field for field, value in fields.items() if value is ABSENT]
    if absent:
        raise _refused(entry, f"the answer of {url} lacks {', '.join(absent)}")
    return Found(fields=fields)


async def _auth(entry: Entry, sources: Sources, site: Site) -> Credential | None:
    auth = entry.fields.get("auth")
    return None if auth is None else await sources.vault.resolve(auth, site)


def _request(entry: Entry, url: str, *, method: str) -> dict[str, Any]:
    given = {key: item for key, item in entry.fields.items() if key in _REQUEST_FIELDS}
    return {"method": method, **given, "url": url}


def _body(data: Any, headers: Any) -> dict[str, Any]:
    """Send a mapping as a form unless the entry's headers say JSON."""
    if data is None:
        return {}
    named = headers if isinstance(headers, dict) else {}
    media_type = next((str(v) for k, v in named.items() if k.lower() == "content-type"), "")
    if isinstance(data, dict) and "json" not in media_type:
        return {"form": data}
    return {"json": data} if isinstance(data, dict | list) else {"body": data}


def _mapping(entry: Entry, field: str) -> dict[str, Any]:
    found = entry.fields.get(field)
    if not isinstance(found, dict) or not found:
        raise _refused(entry, f"it needs a mapping '{field}'")
    return found


def _text(entry: Entry, field: str) -> str:
    found = entry.fields.get(field)
    if not isinstance(found, str) or not found:
        raise _refused(entry, f"it needs a text '{field}'")
    return found


def _refused(entry: Entry, reason: str) -> ToolFailure:
    text = f"keychain entry '{entry.name}' of kind {entry.kind} cannot be resolved: {reason}"
    return ToolFailure(failure("config", text))
