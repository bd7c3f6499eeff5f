"""Query parameters of the API: a name that a route does not have is refused, and not ignored.

Without its misspelled filter a list would answer with everything, and look right.
"""

from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import parse_qsl

from litestar.routes import BaseRoute, HTTPRoute
from litestar.types import HTTPScope

from noetl_contracts import spelling
from noetl_planner.api.http.problems import ApiError

_PREFIX = "/api/"
# Others make these addresses, and may add to them; a webhook's query is data of its executions.
_FREE_ROUTES = frozenset(
    {
        ("GET", "/api/health"),
        ("POST", "/api/webhooks/{name}"),
        ("POST", "/api/callbacks/{token}"),
    }
)
# Where a handler keeps the names that it takes.
_OPTION = "query_names"


def note_query_names(routes: Iterable[BaseRoute]) -> None:
    """Note with each handler of the API which query parameters it takes."""
    for route in routes:
        if not isinstance(route, HTTPRoute) or not route.path_format.startswith(_PREFIX):
            continue
        for method, (handler, model) in route.route_handler_map.items():
            if method != "OPTIONS" and (method, route.path_format) not in _FREE_ROUTES:
                parameters = model.expected_query_params
                handler.opt[_OPTION] = sorted(item.field_alias for item in parameters)


def check_query_names(scope: HTTPScope) -> None:
    """Raise a 400 for a query parameter that the route of a request does not take."""
    query = scope["query_string"]
    known_names: list[str] | None = scope["route_handler"].opt.get(_OPTION) if query else None
    if known_names is None:
        return
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in known_names:
            raise _build_unknown_error(
                f"{scope['method']} {scope['path_template']}", name, known_names
            )


def _build_unknown_error(route: str, name: str, known_names: list[str]) -> ApiError:
    listed_names = ", ".join(known_names)
    nearest = spelling.suggest_word(name, known_names)
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        code="unknown_parameter",
        detail=f"{route} has no query parameter {name[:80]!r}",
        hint=" ".join(filter(None, (nearest, f"it takes {listed_names or 'none'}"))),
    )
