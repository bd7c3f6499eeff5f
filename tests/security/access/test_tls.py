"""The API speaks HTTPS with the certificate of its files, also after they change."""

import asyncio
import contextlib
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import ApiWorld
from tests.support.certificates import write_certificate

from noetl_chassis.settings import SettingsError
from noetl_chassis.tls import CertificateFiles, ReloadedContext
from noetl_cli.local import system
from noetl_planner.api import server
from noetl_planner.api.app import create_app
from noetl_planner.settings import open_api_tls


async def read_certificate(port: int) -> bytes:
    """The certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        shown: Any = writer.get_extra_info("ssl_object")
        return bytes(shown.getpeercert(binary_form=True))
    finally:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


async def ask(port: int, authority: Path) -> bytes:
    """A request over HTTPS from a client that trusts one certificate."""
    context = ssl.create_default_context(cafile=str(authority))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    await close(writer)
    return answer


async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "api.pem"
    write_certificate(file)
    tls = ReloadedContext(CertificateFiles(certificate=str(file)), is_server=True)
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    app = create_app(ApiWorld().services())
    serving = asyncio.create_task(
        server.serve_api(app, host="127.0.0.1", port=0, stop=stop, started=port.set_result, tls=tls)
    )
    try:
        first = await read_certificate(await port)
        assert (await ask(port.result(), file)).startswith(b"HTTP/1.1 200")
        reader, writer = await asyncio.open_connection("127.0.0.1", port.result())
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"HTTP" not in await reader.read(100)
        await close(writer)
        write_certificate(file)
        os.utime(file, ns=(1, 1))
        assert tls.reload_when_changed()
        assert await read_certificate(port.result()) != first
        file.write_text("no certificate")
        os.utime(file, ns=(2, 2))
        assert not tls.reload_when_changed()
        assert (await read_certificate(port.result()))[:1] == b"0"
    finally:
        stop.set()
        await serving


async def test_a_certificate_that_has_ended_is_replaced_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "api.pem"
    write_certificate(file, days=-1)
    tls = ReloadedContext(CertificateFiles(certificate=str(file)), is_server=True)
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    app = create_app(ApiWorld().services())
    serving = asyncio.create_task(
        server.serve_api(app, host="127.0.0.1", port=0, stop=stop, started=port.set_result, tls=tls)
    )
    try:
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
            await ask(await port, file)
        write_certificate(file)
        os.utime(file, ns=(1, 1))
        assert tls.reload_when_changed()
        assert (await ask(port.result(), file)).startswith(b"HTTP/1.1 200")
    finally:
        stop.set()
        await serving


def test_a_file_that_is_no_certificate_is_told_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "api.pem"
    file.write_text("nothing")
    config = system.load_settings({"NOETL_PLANNER_TLS_CERTIFICATE_FILE": str(file)}, tmp_path)
    with pytest.raises(SettingsError, match=r"TLS_CERTIFICATE_FILE.*api\.pem"):
        open_api_tls(config.planner)


def test_old_versions_of_tls_are_not_spoken(tmp_path: Path) -> None:
    file = tmp_path / "api.pem"
    write_certificate(file)
    tls = ReloadedContext(CertificateFiles(certificate=str(file)), is_server=True)
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
