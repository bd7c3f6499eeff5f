"""Tests credentials that requests are signed with, at an address that wants them."""

from typing import Any
from urllib.parse import urlsplit

from noetl_worker.domain.failures import ToolFailure, failure, of_status
from noetl_worker.domain.sites import Site
from noetl_worker.keys.credential_vault import Credential
from noetl_worker.keys.tokens import FETCH_S, Fetch, Fetched, Tokens

_STATUS_REDIRECT = 300
_STATUS_ERROR = 400
_REFUSED = frozenset({401, 403})
_OPEN = "the address answers in the same way without the credential, so this proves nothing of it"


async def request_with(
    credential: Credential, url: str | None, *, fetch: Fetch, site: Site
) -> dict[str, Any]:
    """Send a GET with the credential, and one without it; raises `ToolFailure`."""
    if url is None:
        text = (
            f"credential '{credential.name}' of type '{credential.kind}' names no server: "
            "test it at an address that wants it, with --url, or keep one as its 'test_url'"
        )
        raise ToolFailure(failure("config", text))
    answer = await _answer(url, credential, fetch=fetch, site=site)
    _check_status(answer)
    found = {"server": _host_of(answer.url), "status": answer.status}
    bare = await _answer(url, None, fetch=fetch, site=site)
    return found if bare.status in _REFUSED else {**found, "note": _OPEN}


async def ask_for_token(
    credential: Credential, url: str | None, *, tokens: Tokens, fetch: Fetch, site: Site
) -> dict[str, Any]:
    """Ask for a token, and use it where there is an address; raises `ToolFailure`."""
    granted = (await tokens.ask(credential, site)).fields
    found: dict[str, Any] = {
        "server": _host_of(str(credential.fields.get("token_url"))),
        **{
            name: granted[name] for name in ("token_type", "expires_in", "scope") if name in granted
        },
    }
    if url is None:
        return found
    bearer = Credential(
        name=credential.name,
        kind="bearer",
        version=credential.version,
        fields={"token": granted["token"]},
    )
    return {**found, "request": await request_with(bearer, url, fetch=fetch, site=site)}


async def _answer(url: str, credential: Credential | None, *, fetch: Fetch, site: Site) -> Fetched:
    fields = {"url": url, "method": "GET", "follow_redirects": False}
    return await fetch(fields, credential=credential, site=site, timeout_s=FETCH_S)


def _check_status(answer: Fetched) -> None:
    if answer.status >= _STATUS_ERROR:
        text = f"{answer.url} answered {answer.status}"
        if answer.status in _REFUSED:
            text += ": the server refuses the credential"
        raise ToolFailure(of_status(answer.status, text, retry_after=None))
    if answer.status >= _STATUS_REDIRECT:
        text = f"{answer.url} answered {answer.status}, which leads elsewhere: name that address"
        raise ToolFailure(failure("client_error", text, source="http", status=answer.status))


def _host_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
