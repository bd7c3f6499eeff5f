"""Where the HTTP tool may not go: said before a request, or when its connection is opened."""

from noetl_worker.domain import egress
from noetl_worker.domain.failures import ToolFailure, failure


def check_literal(host: str, port: int, allowances: tuple[egress.Allowance, ...]) -> None:
    """Refuse a URL whose host is a forbidden address; names are checked when they resolve."""
    # The client takes such hosts for addresses and would never resolve them.
    if ":" not in host and not host.replace(".", "").isdigit():
        return
    try:
        is_allowed = egress.is_allowed(host, host=host, port=port, allowances=allowances)
    except ValueError:
        is_allowed = False
    if not is_allowed:
        raise denied(host, port)


def denied(host: str, port: int) -> ToolFailure:
    """Say why a request was not sent."""
    return ToolFailure(
        failure(
            "config",
            f"requests to {host}:{port} are not allowed: the address is not public; "
            "an operator can allow it with NOETL_WORKER_HTTP_ALLOW",
            source="http",
        )
    )
