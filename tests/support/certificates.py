"""Certificate authorities for tests and the certificates that they sign."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files in PEM form."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates.

    Attributes:
        ca: File with its own certificate.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._count = 0
        certificate = (
            _unsigned(name, name, self._key, 1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(SIGNS, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = folder / f"{name}.ca.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, host: str = "localhost", days: int = 1) -> Pair:
        """Signs a new certificate for a host; for localhost, it also covers 127.0.0.1.

        Args:
            name: Common name.
            host: DNS name.
            days: Days of validity; negative for an expired certificate.
        """
        self._count += 1
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        if host == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        certificate = (
            _unsigned(name, self._name, key, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            # Python's ssl requires it since 3.13.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = f"{self._name}.{name}.{self._count}"
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key.pem")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair


class Mount:
    """A secret as mounted by Kubernetes: symlinks to a symlink, which is replaced when the secret is renewed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        folder.mkdir()
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(f"..data/{name}")
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"

    def put(self, pair: Pair) -> None:
        self._count += 1
        version = self._folder / f"..version{self._count}"
        version.mkdir()
        (version / "tls.crt").write_bytes(pair.cert.read_bytes())
        (version / "tls.key").write_bytes(pair.key.read_bytes())
        link = self._folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self._folder / "..data")


def _unsigned(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 30 * DAY)
        .not_valid_after(now + days * DAY)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
