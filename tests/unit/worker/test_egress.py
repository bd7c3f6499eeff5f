import pytest

from noetl_worker.domain.egress import is_address_allowed, parse_allowance


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0"),  # noqa: S104 - an address to be refused
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1"),
        *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1"),
        *("::127.0.0.1", "::a00:1", "fec0::1", "64:ff9b:1::1", "168.63.129.16"),
        *("192.88.99.1", "192.0.0.8"),
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not is_address_allowed(address, host="example.org", port=80, allowances=())


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_address_allowed(address, host="example.org", port=443, allowances=())


@pytest.mark.parametrize(
    ("entry", "host", "address", "port", "expected"),
    [
        ("127.0.0.1", "localhost", "127.0.0.1", 5555, True),
        ("127.0.0.1", "localhost", "127.0.0.2", 5555, False),
        ("127.0.0.1:5555", "localhost", "127.0.0.1", 5555, True),
        ("127.0.0.1:5555", "localhost", "127.0.0.1", 5556, False),
        ("10.0.0.0/8", "x", "10.9.9.9", 80, True),
        ("10.0.0.0/8:80", "x", "10.9.9.9", 81, False),
        ("[::1]:80", "x", "::1", 80, True),
        ("::1", "x", "::1", 81, True),
        ("api.internal", "API.internal", "10.0.0.1", 80, True),
        ("api.internal", "other.internal", "10.0.0.1", 80, False),
        ("*.internal", "a.b.internal", "10.0.0.1", 80, True),
        ("*.internal", "internal.evil.org", "10.0.0.1", 80, False),
    ],
)
def test_the_allow_list_names_hosts_networks_and_ports(
    entry: str, host: str, address: str, port: int, *, expected: bool
) -> None:
    assert (
        is_address_allowed(address, host=host, port=port, allowances=(parse_allowance(entry),))
        is expected
    )
