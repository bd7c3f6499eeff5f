"""TLS of a NATS address: `tls://user:password@host:4222?ca=FILE&cert=FILE&key=FILE`.

The files are read again at every reconnection: a renewed certificate needs no restart.
"""

import ssl
from urllib.parse import parse_qs, urlsplit, urlunsplit

from msgspec import Struct

from noetl_contracts.errors import Permanent

_NAMES = {"ca", "cert", "key"}
_SCHEME = "tls"


class AddressRefused(Permanent):
    """A NATS address whose TLS parts make no sense; it is named without its password."""


class NatsAddress(Struct, frozen=True, kw_only=True):
    """An address as the client takes it, and the files of its TLS, empty where none are named."""

    url: str
    is_secure: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    def open_context(self) -> ssl.SSLContext | None:
        """Make the context of a connection, None for a plain one; raises `AddressRefused`."""
        if not self.is_secure:
            return None
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca:
            # The authorities that are named count, and no others.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_files(context)
        return context

    def load_files(self, context: ssl.SSLContext) -> None:
        """Read the files into a context; raises `AddressRefused`."""
        try:
            if self.ca:
                context.load_verify_locations(self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as failure:
            names = ", ".join(name for name in (self.ca, self.cert, self.key) if name)
            raise AddressRefused(
                f"the certificates of NATS in {names} cannot be used: {failure}"
            ) from failure


def parse_nats_address(text: str) -> NatsAddress:
    """Read an address; raises `AddressRefused` for TLS parts that it cannot have."""
    parts = urlsplit(text)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    location = parts.netloc.rpartition("@")[2]
    unknown = sorted(query.keys() - _NAMES)
    if unknown:
        raise AddressRefused(
            f"NATS_URL: {unknown[0]!r} is no part of {parts.scheme}://{location}: "
            f"write {', '.join(sorted(_NAMES))}"
        )
    if query and parts.scheme != _SCHEME:
        raise AddressRefused(
            f"NATS_URL: {parts.scheme}://{location} names certificates and speaks no TLS: "
            f"write {_SCHEME}://{location}"
        )
    bare = urlunsplit(parts._replace(query=""))
    return NatsAddress(url=bare, is_secure=parts.scheme == _SCHEME, **query)
