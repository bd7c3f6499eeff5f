"""An authority of one cluster, and the certificates and settings of those who talk to its API."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 2
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Authority:
    """Signs what it is asked to; everything it makes is in one folder, and ends in two days."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _build_name("noetl-cluster", None)
        certificate = (
            self._begin(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, file: str, *, user: str, group: str | None = None, hosts: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        """Make a key and its certificate, of a client and of a server at `hosts`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begin(_build_name(user, group), key).add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        if hosts:
            names = x509.SubjectAlternativeName([_build_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        paths = self.folder / f"{file}.crt", self.folder / f"{file}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(paths[1], key)
        return paths

    def make_signing_key(self) -> Path:
        """Make the key that signs the tokens of service accounts."""
        path = self.folder / "service-accounts.key"
        _write_key(path, rsa.generate_private_key(public_exponent=65537, key_size=2048))
        return path

    def write_config(self, name: str, server: str, *, user: str, group: str | None = None) -> Path:
        """Write the settings by which a client finds the API server and says who it is."""
        certificate, key = self.issue(name, user=user, group=group)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "noetl",
                    "cluster": {"server": server, "certificate-authority": str(self.certificate)},
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {"client-certificate": str(certificate), "client-key": str(key)},
                }
            ],
            "contexts": [{"name": "noetl", "context": {"cluster": "noetl", "user": name}}],
            "current-context": "noetl",
        }
        path = self.folder / f"{name}.config"
        path.write_bytes(msgspec.json.encode(config))
        return path

    def _begin(self, name: x509.Name, key: PrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=VALID_DAYS))
        )


def _build_name(user: str, group: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _build_host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(path: Path, key: PrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
