"""Tests credentials that requests are signed with, at an address that wants them."""

from typing import Any
from urllib.parse import urlsplit

from noetl_worker.domain.failures import ToolFailure, build_error, classify_http_status
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.keychain.tokens import FETCH_S, BearerTokens, FetchedResponse, FetchRequest

_STATUS_REDIRECT = 300
_STATUS_ERROR = 400
_REFUSED = frozenset({401, 403})
_OPEN = "the address answers in the same way without the credential, so this proves nothing of it"


async def probe_request(
    credential: Credential, url: str | None, *, fetch: FetchRequest, site: UnitScope
) -> dict[str, Any]:
    """Send a GET with the credential, and one without it; raises `ToolFailure`."""
    if url is None:
        text = (
            f"credential '{credential.name}' of type '{credential.kind}' names no server: "
            "test it at an address that wants it, with --url, or keep one as its 'test_url'"
        )
        raise ToolFailure(build_error("config", text))
    answer = await _fetch_answer(url, credential, fetch=fetch, site=site)
    _check_status(answer)
    answer_fields = {"server": _format_host(answer.url), "status": answer.status}
    bare = await _fetch_answer(url, None, fetch=fetch, site=site)
    return answer_fields if bare.status in _REFUSED else {**answer_fields, "note": _OPEN}


async def probe_token(
    credential: Credential,
    url: str | None,
    *,
    tokens: BearerTokens,
    fetch: FetchRequest,
    site: UnitScope,
) -> dict[str, Any]:
    """Ask for a token, and use it where there is an address; raises `ToolFailure`."""
    grant_fields = (await tokens.request_token(credential, site)).fields
    token: dict[str, Any] = {
        "server": _format_host(str(credential.fields.get("token_url"))),
        **{
            name: grant_fields[name]
            for name in ("token_type", "expires_in", "scope")
            if name in grant_fields
        },
    }
    if url is None:
        return token
    bearer = Credential(
        name=credential.name,
        kind="bearer",
        version=credential.version,
        fields={"token": grant_fields["token"]},
    )
    return {**token, "request": await probe_request(bearer, url, fetch=fetch, site=site)}


async def _fetch_answer(
    url: str, credential: Credential | None, *, fetch: FetchRequest, site: UnitScope
) -> FetchedResponse:
    fields = {"url": url, "method": "GET", "follow_redirects": False}
    return await fetch(fields, credential=credential, site=site, timeout_s=FETCH_S)


def _check_status(answer: FetchedResponse) -> None:
    if answer.status >= _STATUS_ERROR:
        text = f"{answer.url} answered {answer.status}"
        if answer.status in _REFUSED:
            text += ": the server refuses the credential"
        raise ToolFailure(classify_http_status(answer.status, text, retry_after=None))
    if answer.status >= _STATUS_REDIRECT:
        text = f"{answer.url} answered {answer.status}, which leads elsewhere: name that address"
        raise ToolFailure(build_error("client_error", text, source="http", status=answer.status))


def _format_host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


# The rest of the answer holds the token itself, and its accessor.
_SHOWN_FIELDS = ("display_name", "policies", "ttl", "renewable")


async def probe_vault(
    credential: Credential, *, tokens: BearerTokens, site: UnitScope
) -> dict[str, Any]:
    """Let the token look itself up; raises `ToolFailure`."""
    address, token = credential.find_text_field("url"), credential.find_text_field("token")
    if not address or not token:
        raise credential.build_unusable_failure("needs url and token")
    request = {
        "url": f"{address.rstrip('/')}/v1/auth/token/lookup-self",
        "headers": {"X-Vault-Token": token},
        "follow_redirects": False,
    }
    body = await tokens.fetch_json(request, credential=None, site=site, entry=credential.name)
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, dict):
        text = f"'{credential.name}': the server's answer about the token has no 'data'"
        raise ToolFailure(build_error("schema", text, source="http"))
    return {"server": "vault", **{name: data[name] for name in _SHOWN_FIELDS if name in data}}
