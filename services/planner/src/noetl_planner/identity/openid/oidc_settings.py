"""What the planner is told about its identity provider."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from msgspec import Struct


class OidcSettings(Struct, frozen=True, kw_only=True):
    """How people and programs sign in at an identity provider."""

    issuer: str
    client_id: str
    client_secret: str
    cli_client_id: str
    audiences: tuple[str, ...]
    token_issuers: tuple[str, ...]
    groups_claim: str
    scopes: tuple[str, ...]
    # Empty: nobody signs in with a browser.
    public_url: str

    @property
    def is_public_url_secure(self) -> bool:
        """Tell whether browsers come by https."""
        return self.public_url.startswith("https:")


def is_loopback_url(address: str) -> bool:
    """Tell whether an address is http or https on this machine."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        is_here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and is_here
