"""Which addresses the HTTP tool may connect to: public ones, and those on the allow-list."""

from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from msgspec import Struct

Address = IPv4Address | IPv6Address
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_IPV4_MASK = 0xFFFFFFFF
# Addresses that look public and lead to the platform that the worker runs on.
_PLATFORM = frozenset({IPv4Address("168.63.129.16")})
# Reserved, though some releases of the standard library call them global.
_RESERVED = (
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv6Network("64:ff9b:1::/48"),
    IPv6Network("fec0::/10"),
)


# Every request looks a verdict up by its allowances: networks are slow to hash.
class Allowance(Struct, frozen=True, kw_only=True, cache_hash=True):
    """One entry of the allow-list: a network or a host name, perhaps for one port only."""

    host: str | None = None
    network: IPv4Network | IPv6Network | None = None
    port: int | None = None


def parse_allowance(entry: str) -> Allowance:
    """Parse `host`, `*.domain`, `address`, `network/bits`, each with an optional `:port`."""
    text = entry.strip().lower()
    place, port = _split_port(text)
    try:
        return Allowance(network=ip_network(place, strict=False), port=port)
    except ValueError:
        return Allowance(host=place, port=port)


def _split_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        place, _, port_text = text[1:].partition("]")
        return place, int(port_text[1:]) if port_text.startswith(":") else None
    place, colon, port = text.rpartition(":")
    if colon and ":" not in place and port.isdigit():
        return place, int(port)
    return text, None


@lru_cache(maxsize=4096)
def is_address_allowed(
    address: str,
    *,
    host: str,
    port: int,
    allowances: tuple[Allowance, ...],
    platform_ports: frozenset[int] = frozenset(),
) -> bool:
    """Tell whether a connection to `address`, to which `host` resolved, may be made.

    The platform's own ports of this machine are closed, even if an allowance names them.
    """
    parsed = _unwrap_ipv4(ip_address(address.partition("%")[0]))
    if port in platform_ports and (parsed.is_loopback or parsed.is_unspecified):
        return False
    is_reserved = parsed in _PLATFORM or any(parsed in network for network in _RESERVED)
    if parsed.is_global and not parsed.is_multicast and not is_reserved:
        return True
    return any(_matches_allowance(entry, parsed, host.lower(), port) for entry in allowances)


def _matches_allowance(entry: Allowance, address: Address, host: str, port: int) -> bool:
    if entry.port is not None and entry.port != port:
        return False
    if entry.network is not None:
        return address in entry.network
    name = entry.host or ""
    return host == name or (name.startswith("*.") and host.endswith(name[1:]))


def _unwrap_ipv4(address: Address) -> Address:
    """See through IPv4 addresses in IPv6 clothing."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    # The first two of the compatible ones are the unspecified address and the loopback.
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & _IPV4_MASK)
    return address.sixtofour or address
