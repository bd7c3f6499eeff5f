"""What a token is bound to: scheme, host and port of a server."""

from urllib.parse import urlsplit

from noetl_cli.errors import CliError, ExitCode

_PORT_BY_SCHEME = {"http": 80, "https": 443}


def parse_origin(address: str) -> str:
    """Return an address without path and user; raises `CliError` for what is no address."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in _PORT_BY_SCHEME:
        raise CliError(
            f"{address!r:.200} is not the address of a server.",
            way_out="Write it as https://host:port",
            exit_code=ExitCode.USAGE,
        )
    host_text = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host_text}:{port or _PORT_BY_SCHEME[parts.scheme]}"


def is_private_way(address: str) -> bool:
    """Tell whether nobody reads along: https, or this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))


def is_loopback(host: str | None) -> bool:
    """Tell whether a host is this machine."""
    if host in {"localhost", "::1"}:
        return True
    # Numbers alone: 127.example.org is a name like any other.
    numbers = (host or "").split(".")
    return len(numbers) == 4 and numbers[0] == "127" and all(part.isdigit() for part in numbers)  # noqa: PLR2004 - the parts of an IPv4 address
