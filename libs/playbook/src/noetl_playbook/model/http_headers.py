"""Headers of HTTP requests that a playbook may set, and those that belong to the client.

A client shares its connections among tasks. Who says where a request on such a connection ends, or
what becomes of the connection, decides which answer the next task gets (RFC 9112, section 11.2).
"""

import re

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# RFC 9110, section 5.5, leaves a tab to values and no other control character.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CLIENT_HEADERS = {
    **dict.fromkeys(
        ("content-length", "transfer-encoding", "trailer", "te"),
        "the client says itself where a request ends",
    ),
    **dict.fromkeys(
        ("connection", "keep-alive", "upgrade", "http2-settings"),
        "the connection is shared with other tasks",
    ),
    "host": "the host of 'url' is asked",
}
_PROXY = "proxy-"
_METHODS_REFUSED = frozenset({"CONNECT", "TRACE"})


def find_header_problem(name: str, value: str = "") -> str | None:
    """Say why a request may not have a header, if it may not."""
    if name.startswith(":"):
        return f"{name!r} is a pseudo header of HTTP/2: method and url say what it would say"
    if not _TOKEN.fullmatch(name):
        return f"{name!r} is no name of a header"
    lower = name.lower()
    reason = _CLIENT_HEADERS.get(lower)
    if reason is not None:
        return f"the header {name!r} cannot be set: {reason}"
    if lower.startswith(_PROXY):
        return f"the header {name!r} cannot be set: it is for proxies, and none is used"
    if _CONTROLS.search(value):
        return f"the value of the header {name!r} has a line break or another control character"
    return None


def find_method_problem(method: str) -> str | None:
    """Say why a request may not have a method, if it may not."""
    if not _TOKEN.fullmatch(method):
        return f"{method!r} is no method"
    if method in _METHODS_REFUSED:
        return f"the method {method} cannot be used: it is for proxies and their tests"
    return None
