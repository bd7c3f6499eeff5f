"""A NATS address asks for TLS, names whom to trust, and never shows its password."""

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.support.certificates import write_certificate

from noetl_messaging.jetstream.tls_address import AddressRefused, parse_nats_address

USER = "planner:pass-word"


def test_a_plain_address_speaks_no_tls() -> None:
    address = parse_nats_address(f"nats://{USER}@broker:4222")
    assert address.open_context() is None
    assert address.url == f"nats://{USER}@broker:4222"


def test_the_files_are_no_part_of_what_the_client_dials() -> None:
    address = parse_nats_address(f"tls://{USER}@broker:4222?ca=/c/ca.pem&cert=/c/c.pem&key=/c/k")
    assert address.url == f"tls://{USER}@broker:4222"
    assert (address.ca, address.cert, address.key) == ("/c/ca.pem", "/c/c.pem", "/c/k")


async def test_the_named_authority_counts_and_no_other(tmp_path: Path) -> None:
    trusted, other = tmp_path / "trusted.pem", tmp_path / "other.pem"
    write_certificate(trusted)
    write_certificate(other)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(trusted)
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=serving
    )
    port = server.sockets[0].getsockname()[1]
    async with server:
        context = parse_nats_address(f"tls://127.0.0.1:{port}?ca={trusted}").open_context()
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.close()
        for text in (f"tls://127.0.0.1:{port}?ca={other}", f"tls://127.0.0.1:{port}"):
            context = parse_nats_address(text).open_context()
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection("127.0.0.1", port, ssl=context)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"nats://{USER}@broker:4222?ca=/c/ca.pem", "speaks no TLS"),
        (f"tls://{USER}@broker:4222?verify=no", "'verify' is no part"),
    ],
)
def test_what_an_address_cannot_have_is_refused(text: str, fault: str) -> None:
    with pytest.raises(AddressRefused, match=fault) as refused:
        parse_nats_address(text)
    assert "pass-word" not in str(refused.value)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(AddressRefused, match=r"ca\.pem cannot be used") as refused:
        parse_nats_address(f"tls://{USER}@broker:4222?ca={file}").open_context()
    assert "pass-word" not in str(refused.value)
