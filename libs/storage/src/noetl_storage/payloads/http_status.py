"""What the status of a store's answer says: whether it is away, or refuses this one request."""

from http import HTTPStatus

_PASSING = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)


def is_request_refused(status: int | None) -> bool:
    """Tell whether an answer blames the request: asking for hours would not help."""
    if status is None or not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return False
    return status not in _PASSING
