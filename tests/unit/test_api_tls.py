"""Certificate files: errors in invalid files, expiry, and reloading when they change."""

import asyncio
import socket
import ssl
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dragoman_server.security.access import Access
from dragoman_server.security.tls import Tls, expiry_of
from dragoman_server.security.watched_files import FileError
from tests.support.certificates import Authority, Mount


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def test_unusable_files_are_explained(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.sign("server"), authority.sign("other")
    nothing, text = tmp_path / "nothing", tmp_path / "text"
    text.write_text("canary")
    empty = tmp_path / "empty"
    empty.touch()
    for cert, key, ca, sentence in (
        (nothing, pair.key, None, f"{nothing} can't be read: No such file or directory"),
        (pair.cert, pair.key, nothing, f"{nothing} can't be read: No such file or directory"),
        (pair.cert, tmp_path, None, f"{tmp_path} can't be read: Is a directory"),
        (pair.cert, other.key, None, f"the key in {other.key} does not match the certificate in {pair.cert}"),
        (text, pair.key, None, f"{text} contains no certificate in PEM format"),
        (pair.key, pair.key, None, f"{pair.key} contains no certificate in PEM format"),
        (pair.cert, text, None, f"{text} contains no private key in PEM format, or one with a password"),
        (pair.cert, pair.cert, None, f"{pair.cert} contains no private key in PEM format, or one with a password"),
        (pair.cert, pair.key, text, f"{text} contains no certificates in PEM format"),
        (pair.cert, pair.key, empty, f"{empty} contains no certificates in PEM format"),
        (empty, pair.key, None, f"{empty} contains no certificate in PEM format"),
        (pair.cert, empty, None, f"{empty} contains no private key in PEM format, or one with a password"),
    ):
        with pytest.raises(FileError) as error:
            Tls(cert, key, ca)
        assert str(error.value) == sentence


def test_comments_between_certificates_are_ignored(authority: Authority) -> None:
    """Bundles of authorities have them, in any script."""
    pair = authority.sign("server")
    for file in (pair.cert, pair.key, authority.ca):
        file.write_bytes("Türktrust, Łódź\n".encode() + file.read_bytes() + "Ж\n".encode())
    Tls(pair.cert, pair.key, authority.ca)


def test_a_key_with_a_password_is_refused_without_a_prompt(authority: Authority, tmp_path: Path) -> None:
    pair = authority.sign("server")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"canary"),
        )
    )
    with pytest.raises(FileError, match="or one with a password"):
        Tls(pair.cert, locked, None)


def test_changed_files_are_reloaded_once_they_match(authority: Authority, tmp_path: Path) -> None:
    pair = authority.sign("server")
    tls = Tls(pair.cert, pair.key, None)
    first = tls.files.value
    assert not tls.files.refresh()
    new = authority.sign("server")
    # For a moment the key does not match the certificate.
    new.cert.replace(pair.cert)
    with capture_logs() as logs:
        assert not tls.files.refresh()
        assert not tls.files.refresh()
        assert tls.files.value is first
        new.key.replace(pair.key)
        assert tls.files.refresh()
    assert tls.files.value is not first
    assert [entry["log_level"] for entry in logs] == ["error", "info"]
    assert "does not match the certificate" in logs[0]["why"]


def test_the_expiry_is_read_from_the_certificate(authority: Authority) -> None:
    # After 2049 the time has another format.
    for days in (1, 365, 40 * 365):
        pair = authority.sign("server", days=days)
        certificate = x509.load_pem_x509_certificate(pair.cert.read_bytes())
        assert Tls(pair.cert, pair.key, None).expires == certificate.not_valid_after_utc.timestamp()
    with capture_logs() as logs:
        old = authority.sign("server", days=-1)
        assert Tls(old.cert, old.key, None).expires is not None
    assert [entry["event"] for entry in logs] == ["the certificate has expired; clients will refuse it"]


@pytest.mark.parametrize("damage", [b"", b"\x30\x00", b"\x30\x03\x30\x01\x30", bytes(100), b"\x30\x84\xff\xff\xff\xff"])
def test_the_expiry_of_a_damaged_certificate_is_an_error(damage: bytes) -> None:
    with pytest.raises(ValueError):
        expiry_of(ssl.DER_cert_to_PEM_cert(damage))
    with pytest.raises(ValueError):
        expiry_of(damage.decode("latin-1"))


def test_metrics_report_unusable_files_and_the_expiry(authority: Authority) -> None:
    pair, other = authority.sign("server"), authority.sign("other")
    registry = CollectorRegistry()
    registry.register(Access(tls := Tls(pair.cert, pair.key, None)))

    def unusable() -> float | None:
        return registry.get_sample_value("dragoman_files_unusable", {"files": "TLS certificates"})

    assert registry.get_sample_value("dragoman_certificate_end_timestamp_seconds") == tls.expires
    assert unusable() == 0
    kept = pair.key.read_bytes()
    pair.key.write_bytes(other.key.read_bytes())
    assert not tls.files.refresh()
    assert unusable() == 1
    pair.key.write_bytes(kept)
    tls.files.refresh()
    assert unusable() == 0


def test_a_swapped_directory_behind_a_symbolic_link_is_noticed(authority: Authority, tmp_path: Path) -> None:
    """Kubernetes renews a secret this way: tls.crt -> ..data/tls.crt, and ..data gets another target."""
    mount = Mount(tmp_path / "secret")
    mount.put(authority.sign("first"))
    tls = Tls(mount.cert, mount.key, None)
    mount.put(authority.sign("second"))
    assert tls.files.refresh()
    assert not tls.files.refresh()


def presented(port: int, authority: Authority) -> str:
    """Returns the common name of the certificate that a server presents."""
    context = ssl.create_default_context(cafile=authority.ca)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        certificate = secure.getpeercert()
    assert certificate is not None
    subject: dict[str, str] = dict(part[0] for part in certificate["subject"])  # type: ignore[misc]
    return subject["commonName"]


async def test_each_handshake_uses_the_current_files(authority: Authority, tmp_path: Path) -> None:
    pair, new = authority.sign("first"), authority.sign("second")
    tls = Tls(pair.cert, pair.key, None)
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", tls.credentials())
    await server.start()
    assert await asyncio.to_thread(presented, port, authority) == "first"
    new.cert.replace(pair.cert)
    new.key.replace(pair.key)
    assert await asyncio.to_thread(presented, port, authority) == "first"
    assert tls.files.refresh()
    for _ in range(2):
        assert await asyncio.to_thread(presented, port, authority) == "second"
    await server.stop(None)
