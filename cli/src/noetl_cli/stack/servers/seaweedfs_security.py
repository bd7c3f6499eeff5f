"""What SeaweedFS' parts ask of each other: signed requests, and certificates of one home.

Its S3 interface asks for keys. Its other interfaces would answer everybody on the machine.
"""

import secrets
from pathlib import Path

from noetl_chassis.clock import SystemClock
from noetl_chassis.seals.own_certificate import make_certificate

_KEY_BYTES = 32
# Beside the configuration, in the folder in which the server runs.
_CERTIFICATE, _KEY = "grpc.crt", "grpc.key"
_TOKENS = ("signing", "signing.read", "filer_signing", "filer_signing.read")
_PARTS = ("master", "volume", "filer", "s3", "client")


def write_security(directory: Path) -> None:
    """Write keys and a certificate, once, readable by their owner alone."""
    configuration = directory / "security.toml"
    if configuration.exists():
        return
    certificate, key = make_certificate(SystemClock().now())
    for name, data in ((_CERTIFICATE, certificate), (_KEY, key)):
        _write_privately(directory / name, data)
    _write_privately(configuration, _render_security().encode())


def _write_privately(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def _render_security() -> str:
    sections = [
        f'[jwt.{name}]\nkey = "{secrets.token_hex(_KEY_BYTES)}"\nexpires_after_seconds = 60\n'
        for name in _TOKENS
    ]
    sections.append(f'[grpc]\nca = "{_CERTIFICATE}"\n')
    sections += [f'[grpc.{part}]\ncert = "{_CERTIFICATE}"\nkey = "{_KEY}"\n' for part in _PARTS]
    return "\n".join(sections)
