"""Certificates by settings, read again when their files change: no service restarts for them.

A context serves new connections with what its files hold then; open ones keep what they began
with. A file that cannot be read meanwhile changes nothing, and is logged.
"""

import asyncio
import ssl
from pathlib import Path

from msgspec import Struct

from noetl_chassis.structured_log import structlog

RELOAD_S = 10.0

log = structlog.get_logger(__name__)


class CertificateError(Exception):
    """Certificates cannot be used: which file, and why."""


class CertificateFiles(Struct, frozen=True, kw_only=True):
    """PEM files: the own certificate with its key, and the authorities that check peers."""

    certificate: str = ""
    key: str = ""
    authorities: str = ""

    def list_paths(self) -> list[Path]:
        """Return the files that are named."""
        return [Path(name) for name in (self.certificate, self.key, self.authorities) if name]


class ReloadedContext:
    """A context and the state of its files when they were read last."""

    def __init__(self, files: CertificateFiles, *, is_server: bool) -> None:
        purpose = ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH
        self._files = files
        self.context = ssl.create_default_context(purpose)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        if is_server and files.authorities:
            # Clients prove who they are by certificates of these authorities.
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._load_files()
        self._state = self._read_state()

    def reload_when_changed(self) -> bool:
        """Read the files again if one has changed; False when none has, or one is unusable."""
        state = self._read_state()
        if state == self._state:
            return False
        try:
            self._load_files()
        except CertificateError as failure:
            log.warning("certificates not reloaded", reason=str(failure))
            return False
        self._state = state
        log.info("certificates reloaded", files=[str(path) for path in self._files.list_paths()])
        return True

    async def reload_until_stopped(self, stop: asyncio.Event) -> None:
        """Look at the files every few seconds until told to stop."""
        while not stop.is_set():
            try:
                async with asyncio.timeout(RELOAD_S):
                    await stop.wait()
            except TimeoutError:
                self.reload_when_changed()

    def _load_files(self) -> None:
        files = self._files
        try:
            if files.certificate:
                self.context.load_cert_chain(files.certificate, files.key or None)
            if files.authorities:
                self.context.load_verify_locations(files.authorities)
        except (OSError, ssl.SSLError) as failure:
            names = ", ".join(str(path) for path in files.list_paths())
            raise CertificateError(
                f"the certificates in {names} cannot be used: {failure}"
            ) from failure

    def _read_state(self) -> tuple[tuple[int, int], ...]:
        """Return what tells one version of the files from another; links are followed."""
        state = []
        for path in self._files.list_paths():
            try:
                status = path.stat()
            except OSError:
                state.append((0, 0))
            else:
                state.append((status.st_mtime_ns, status.st_ino))
        return tuple(state)
