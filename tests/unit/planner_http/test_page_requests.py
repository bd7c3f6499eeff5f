"""Each request of the API that a page shows is one that the API describes."""

import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from msgspec import Struct
from tests.support.api import ApiWorld

from noetl_planner.api.app import create_app

# Addresses of other systems.
FOREIGN = {"/api/v1/lineage"}
ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REQUEST = re.compile(
    r"(?:\b(GET|POST|PUT|DELETE) )?(?:\$API|http://[\w.]+:\d+|(?<![\w/]))(/api/[^\s\"'`)|,;]*)"
)


class Request(Struct, frozen=True, kw_only=True):
    """A request that a page shows; without a method the page names the route alone."""

    method: str | None
    path: str
    parameters: tuple[str, ...]


def list_requests(page: Path) -> list[Request]:
    """List the requests to the API that a page names, in samples and in sentences."""
    requests = []
    for match in REQUEST.finditer(page.read_text("utf-8")):
        parts = urlsplit(match[2].rstrip(".:&"))
        names = tuple(name for name, _ in parse_qsl(parts.query, keep_blank_values=True))
        requests.append(Request(method=match[1], path=parts.path.rstrip("/"), parameters=names))
    return requests


@cache
def list_routes() -> dict[str, Any]:
    """List the routes of the API by their path."""
    described = create_app(ApiWorld().services()).openapi_schema.to_schema()
    routes: dict[str, Any] = described["paths"]
    return routes


def find_fault(request: Request) -> str | None:
    """Say what the API would not know of a request."""
    routes = [
        route
        for path, route in list_routes().items()
        if re.fullmatch(re.sub(r"\{[^}]+\}", "[^ ]+", path), request.path)
    ]
    if request.method is not None:
        routes = [route for route in routes if request.method.lower() in route]
    if not routes:
        return f"{request.method or ''} {request.path} is no route"
    names = {
        parameter["name"]
        for route in routes
        for operation in route.values()
        for parameter in operation.get("parameters", [])
    }
    unknown = [name for name in request.parameters if name not in names]
    return f"{request.path} takes no {unknown}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_requests_of_a_page_exist(page: Path) -> None:
    faults = [
        fault
        for request in list_requests(page)
        if request.path not in FOREIGN and (fault := find_fault(request))
    ]
    assert faults == []


def test_a_wrong_request_is_noticed() -> None:
    assert find_fault(Request(method="GET", path="/api/pools", parameters=())) is None
    assert find_fault(Request(method="PUT", path="/api/pools", parameters=()))
    assert find_fault(Request(method=None, path="/api/pool", parameters=()))
    assert find_fault(Request(method="GET", path="/api/executions", parameters=("stat",)))
