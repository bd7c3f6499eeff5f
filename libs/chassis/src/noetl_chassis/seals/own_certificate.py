"""A certificate by which the parts of one server know each other."""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

# A stack is made once and may run for years.
_VALID = timedelta(days=36_500)
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "noetl")])


def make_certificate(now: datetime) -> tuple[bytes, bytes]:
    """Make a certificate that signs itself, and its key, both as PEM.

    The parts of one server show it to each other, and trust no other.
    """
    key = ec.generate_private_key(ec.SECP256R1())
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
