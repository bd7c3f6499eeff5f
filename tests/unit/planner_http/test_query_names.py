"""A query parameter or a field of a body that a route does not have is refused, and named."""

from http import HTTPStatus
from typing import Any

import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute
from litestar.testing import AsyncTestClient
from msgspec import Struct
from tests.support.api import ApiWorld

from noetl_contracts import codec
from noetl_planner.api.app import create_app

Api = AsyncTestClient[Litestar]
FREE = {
    ("GET", "/api/health"),
    ("POST", "/api/webhooks/{name}"),
    ("POST", "/api/callbacks/{token}"),
}


@pytest.mark.parametrize(
    ("path", "detail", "hint"),
    [
        (
            "/api/executions?statsu=FAILED",
            "GET /api/executions has no query parameter 'statsu'",
            "did you mean 'status'? it takes before, limit, ",
        ),
        (
            "/api/executions?status=FAILED&limit=3&nothing",
            "GET /api/executions has no query parameter 'nothing'",
            "it takes before, limit, ",
        ),
        (
            "/api/auth/whoami?tenant=acme",
            "GET /api/auth/whoami has no query parameter 'tenant'",
            "it takes none",
        ),
    ],
)
async def test_an_unknown_parameter_is_refused_by_its_name(
    api: Api, path: str, detail: str, hint: str
) -> None:
    answer = await api.get(path)
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    problem = answer.json()
    assert (problem["code"], problem["detail"]) == ("unknown_parameter", detail)
    assert problem["hint"].startswith(hint)


async def test_a_start_by_the_fast_path_is_refused_too(api: Api) -> None:
    answer = await api.post("/api/execute?wait=5", json={"path": "demo/hello"})
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert "'wait'" in answer.json()["detail"]


async def test_a_name_of_any_length_and_spelling_is_shown_short_and_escaped(api: Api) -> None:
    answer = await api.get(f"/api/executions?%0a%E2%80%AE{'x' * 5000}=1")
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert len(answer.content) < 2000
    assert b"\xe2\x80\xae" not in answer.content


def list_handlers() -> list[tuple[str, str, Any]]:
    return [
        (method, route.path_format, handler)
        for route in create_app(ApiWorld().services()).routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items()
        if method != "OPTIONS"
    ]


def test_every_route_knows_the_parameters_that_its_document_names() -> None:
    app = create_app(ApiWorld().services())
    described = codec.decode_json(codec.encode_json(app.openapi_schema.to_schema()))["paths"]
    checked = 0
    for route in app.routes:
        assert isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items():
            known = handler.opt.get("query_names")
            if not route.path_format.startswith("/api/") or method == "OPTIONS":
                assert known is None
                continue
            if (method, route.path_format) in FREE:
                assert known is None
                continue
            operation = described.get(route.path_format, {}).get(method.lower())
            if operation is None:
                continue
            names = [
                item["name"] for item in operation.get("parameters", []) if item["in"] == "query"
            ]
            assert known == sorted(names), f"{method} {route.path_format}"
            checked += 1
    assert checked > 100


def test_every_body_refuses_fields_that_it_does_not_have() -> None:
    open_bodies = [
        f"{method} {path}: {field.annotation}"
        for method, path, handler in list_handlers()
        if (field := handler.parsed_data_field) is not None
        and isinstance(field.annotation, type)
        and issubclass(field.annotation, Struct)
        and not field.annotation.__struct_config__.forbid_unknown_fields
    ]
    assert open_bodies == []
