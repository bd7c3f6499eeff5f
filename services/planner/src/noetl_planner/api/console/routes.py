"""Serves the console: files that are no secret; its pages ask the API, with the roles of who looks.

The policy of these answers lets a page load and ask nothing but this planner, and no script or
style that stands in a page.
"""

import asyncio
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated
from urllib.parse import parse_qsl, quote, urlencode

from litestar import Response, get
from litestar.params import FromPath, HeaderParameter

from noetl_planner.api.console import console_files
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import AnyRequest

CONSOLE_PATH = "/console"
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# Where the API has what a page shows.
_PAGES = tuple(
    (re.compile(pattern), address)
    for pattern, address in (
        (r"runs", "/api/executions"),
        (r"runs/(?P<id>[0-9]+)", "/api/executions/{id}/moment"),
        (r"runs/(?P<id>[0-9]+)/events", "/api/executions/{id}/events"),
        (r"runs/(?P<id>[0-9]+)/logs", "/api/executions/{id}/logs"),
        (r"runs/(?P<id>[0-9]+)/items", "/api/executions/{id}/items"),
        (r"runs/(?P<id>[0-9]+)/payloads", "/api/result/{id}/list"),
        (r"runs/(?P<id>[0-9]+)/context", "/api/executions/{id}/moment"),
        (r"runs/(?P<id>[0-9]+)/compare", "/api/executions/{id}/moments/difference"),
        (r"runs/(?P<id>[0-9]+)/counterfactual", "/api/executions/{id}/counterfactual"),
        (r"approvals", "/api/approvals"),
        (r"workers", "/api/workers"),
        (r"health", "/api/health"),
        (r"playbooks", "/api/catalog"),
        (r"playbooks/(?P<path>.+)", "/api/catalog/{path}"),
        (r"schedules", "/api/schedules"),
        (r"webhooks", "/api/webhooks"),
        (r"notifications", "/api/notifications"),
        (r"credentials", "/api/credentials"),
        (r"dead-letters", "/api/dead-letters"),
        (r"audit", "/api/audit"),
    )
)
# What the API calls the words of a page's address: the moment that is shown, and a search.
_QUERY_NAMES = {
    "/api/executions/{id}/moment": {"as_of": "version"},
    "/api/executions/{id}/items": {"as_of": "version"},
    "/api/executions/{id}/items/{step}": {"as_of": "version"},
    "/api/executions/{id}/difference": {"as_of": "version", "run": "with"},
    "/api/executions/{id}/events": {"as_of": "version", "find": "text"},
    "/api/executions/{id}/logs": {"as_of": "version", "find": "text"},
    "/api/result/{id}/list": {"as_of": "version"},
}
# Words that only say what a page shows in its panel: the answer has all of it. What narrows a page
# and not the answer stays, and the API refuses it.
_PANEL_WORDS = {
    "/api/executions/{id}/moment": frozenset({"step"}),
    "/api/result/{id}/list": frozenset({"step"}),
    "/api/executions/{id}/items/{step}": frozenset({"step"}),
    # Its two moments are named; the slider's does not change them.
    "/api/executions/{id}/moments/difference": frozenset({"as_of"}),
}
# The page that compares two moments compares two runs where its address names another one.
_MOMENTS_COMPARED, _RUNS_COMPARED = (
    "/api/executions/{id}/moments/difference",
    "/api/executions/{id}/difference",
)
# The items of one loop, where the page's address names its step, which is then no question.
_FIRST_LOOP, _NAMED_LOOP = "/api/executions/{id}/items", "/api/executions/{id}/items/{step}"
_IMMUTABLE = "public, max-age=31536000, immutable"

Accepted = Annotated[str, HeaderParameter(name="Accept-Encoding")]
Accept = Annotated[str, HeaderParameter(name="Accept")]
KnownTag = Annotated[str, HeaderParameter(name="If-None-Match")]


@get([CONSOLE_PATH, CONSOLE_PATH + "/{path:path}"], include_in_schema=False)
async def show_console(
    request: AnyRequest,
    path: FromPath[str] = "",
    accepted: Accepted = "",
    accept: Accept = "",
    known_tag: KnownTag = "",
) -> Response[bytes]:
    """Send a file of the console; every page of it is the same document."""
    name = path.strip("/")
    if prefers_json(accept):
        query = request.scope["query_string"].decode("latin-1")
        address = find_json_address(name, query)
        if address is not None:
            return _redirect_to_json(address)
    if not console_files.has_bundle():
        raise problems.build_not_found_error(
            "the console is not part of this installation",
            hint="make console builds it; the command line does all that it does",
        )
    served = await asyncio.to_thread(console_files.find_file, name, accepted)
    if served is None and not name.startswith(console_files.HASHED_FOLDER):
        served = await asyncio.to_thread(console_files.find_file, console_files.INDEX, accepted)
    if served is None:
        raise problems.build_not_found_error(f"the console has no file {name[:200]!r}")
    headers = {
        **SECURITY_HEADERS,
        "Cache-Control": _IMMUTABLE if served.is_hashed else "no-cache",
        "ETag": served.etag,
        "Vary": "Accept, Accept-Encoding",
        **({"Content-Encoding": served.encoding} if served.encoding else {}),
    }
    if known_tag == served.etag:
        return Response(b"", status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(served.content, media_type=served.media_type, headers=headers)


def _redirect_to_json(address: str) -> Response[bytes]:
    """Send a program that prefers JSON from a page of the console to the API."""
    return Response(
        b"",
        status_code=HTTPStatus.TEMPORARY_REDIRECT,
        headers={"Location": address, "Cache-Control": "no-store", "Vary": "Accept"},
    )


def find_json_address(page: str, query: str) -> str | None:
    """Return the address in the API of a page below `/console`; None for a page without one."""
    for pattern, address in _PAGES:
        match = pattern.fullmatch(page.strip("/"))
        if match is not None:
            # A page's name came decoded; in an address it is written as one again.
            words = {name: quote(word) for name, word in match.groupdict().items()}
            asked = _choose_address(address, query)
            words["step"] = quote(dict(parse_qsl(query)).get("step", ""), safe="")
            json_address = asked.format(**words)
            json_query = _rename_words(
                query,
                _QUERY_NAMES.get(asked, {}),
                panel_words=_PANEL_WORDS.get(asked, frozenset()),
            )
            return f"{json_address}?{json_query}" if json_query else json_address
    return None


def _choose_address(address: str, query: str) -> str:
    """Return the address of two runs, or of one step's loop, where the query names them."""
    words = dict(parse_qsl(query))
    if address == _MOMENTS_COMPARED and "run" in words:
        return _RUNS_COMPARED
    return _NAMED_LOOP if address == _FIRST_LOOP and "step" in words else address


def _rename_words(query: str, names: Mapping[str, str], *, panel_words: frozenset[str]) -> str:
    words = parse_qsl(query, keep_blank_values=True)
    return urlencode(
        [(names.get(name, name), value) for name, value in words if name not in panel_words]
    )


def prefers_json(accept: str) -> bool:
    """Tell whether an `Accept` header asks for JSON rather than for a page."""
    types = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return "application/json" in types and "text/html" not in types


ROUTES = [show_console]
