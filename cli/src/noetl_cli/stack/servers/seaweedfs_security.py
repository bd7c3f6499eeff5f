"""What SeaweedFS' parts ask of each other: signed requests, and certificates of one home.

Its S3 interface asks for keys. Its other interfaces would answer everybody on the machine.
"""

import secrets
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from noetl_chassis.clock import SystemClock

_KEY_BYTES = 32
# Beside the configuration, in the folder in which the server runs.
_CERTIFICATE, _KEY = "grpc.crt", "grpc.key"
_TOKENS = ("signing", "signing.read", "filer_signing", "filer_signing.read")
_PARTS = ("master", "volume", "filer", "s3", "client")
# A stack is made once and may run for years.
_VALID = timedelta(days=36_500)
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "noetl")])


def write_security(directory: Path) -> None:
    """Write keys and a certificate, once, readable by their owner alone."""
    configuration = directory / "security.toml"
    if configuration.exists():
        return
    certificate, key = _make_certificate()
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


def _make_certificate() -> tuple[bytes, bytes]:
    """Make a certificate that signs itself: the one that each part shows and trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = SystemClock().now()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
