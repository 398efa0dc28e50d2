"""TLS of the gRPC port, with or without client certificates. Certificates may be renewed while the server runs."""

import datetime
import os
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import structlog

from dragoman_server.security.watched_files import FileError, WatchedFiles

log = structlog.get_logger()

Configuration = grpc.ServerCertificateConfiguration

# DER tags (X.690) of the values that lead to a certificate's expiry.
UTC_TIME, GENERALIZED_TIME, VERSION = 0x17, 0x18, 0xA0
END = "-----END CERTIFICATE-----"


class Tls:
    """The server's certificate and key and, for mutual TLS, the authorities that sign client certificates.

    A handshake uses the current files. Open connections stay open when they change.

    Args:
        certificate: PEM file with the server's certificate, followed by the intermediate ones.
        key: PEM file with the private key, without a password.
        client_ca: PEM file with the certificates of the authorities; None to accept clients without a certificate.

    Attributes:
        expires: When the certificate expires, in seconds since 1970; None if that can't be parsed.

    Raises:
        FileError: the files can't be used.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._names = [str(path) for path in (certificate, key, client_ca) if path is not None]
        self.expires: float | None = None
        paths = [Path(name) for name in self._names]
        self.files: WatchedFiles[Configuration] = WatchedFiles("TLS certificates", paths, self._parse)
        self._mutual = client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        """Returns credentials for a gRPC server."""
        current = self.files.value

        def fetch() -> Configuration | None:
            """Returns the configuration if it has changed, else None. gRPC calls it at each handshake, in a thread."""
            nonlocal current
            latest = self.files.value
            if latest is current:
                return None
            current = latest
            return latest

        return grpc.dynamic_ssl_server_credentials(
            current,
            fetch,  # type: ignore[arg-type]  # gRPC accepts None, contrary to its type stubs
            require_client_authentication=self._mutual,
        )

    def _parse(self, contents: list[bytes]) -> Configuration:
        """Checks the files and converts them for gRPC, which would refuse every handshake without an error message."""
        certificate, key, *client_ca = contents
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with _as_file(certificate) as certificate_file, _as_file(key) as key_file:
            try:
                context.load_cert_chain(certificate_file, key_file, password=_no_password)
            except ssl.SSLError as error:
                raise FileError(self._problem(error, certificate)) from None
        for authorities in client_ca:
            if not _has_certificates(authorities):
                raise FileError(f"{self._names[2]} contains no certificates in PEM format")
        try:
            self.expires = expiry_of(certificate.decode("ascii", "replace"))
        except ValueError:
            self.expires = None
        if self.expires is not None and self.expires < time.time():
            log.error("the certificate has expired; clients will refuse it", file=self._names[0])
        roots = client_ca[0] if client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=roots)

    def _problem(self, error: ssl.SSLError, certificate: bytes) -> str:
        """Explains why OpenSSL can't load the certificate and the key."""
        certificate_name, key_name = self._names[:2]
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"the key in {key_name} does not match the certificate in {certificate_name}"
        if error.reason and "TOO" in error.reason:  # EE_KEY_TOO_SMALL, CA_MD_TOO_WEAK
            return f"the certificate in {certificate_name} is too weak: {error.reason.lower().replace('_', ' ')}"
        if not _has_certificates(certificate):
            return f"{certificate_name} contains no certificate in PEM format"
        return f"{key_name} contains no private key in PEM format, or one with a password"


def _has_certificates(content: bytes) -> bool:
    with _as_file(content) as file:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=file)
        except ssl.SSLError:
            return False
    return True


def _no_password() -> str:
    """Returns an empty password; without this callback OpenSSL would prompt at the terminal."""
    return ""


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Provides bytes in memory under a file name, because a private key must not be written to disk."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def expiry_of(pem: str) -> float:
    """Returns when the first certificate of a PEM text expires, in seconds since 1970.

    Python's standard library parses only certificates that a peer has presented. In DER (RFC 5280, 4.1) the path is
    Certificate, tbsCertificate, then, after version (optional), serial number, signature algorithm and issuer, the
    validity: not before, not after.

    Raises:
        ValueError: the text is not a certificate.
    """
    start = pem.find("-----BEGIN CERTIFICATE-----")
    stop = pem.find(END, start)
    if start < 0 or stop < 0:
        raise ValueError("no certificate")
    der = ssl.PEM_cert_to_DER_cert(pem[start : stop + len(END)] + "\n")
    try:
        fields = _parts(_parts(_parts(der)[0][1])[0][1])
        validity = _parts(fields[4 if fields[0][0] == VERSION else 3][1])
        tag, content = validity[1]
        style = {UTC_TIME: "%y%m%d%H%M%SZ", GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}[tag]
        moment = datetime.datetime.strptime(content.decode("ascii"), style)
    except (IndexError, KeyError) as error:
        raise ValueError("no certificate") from error
    return moment.replace(tzinfo=datetime.UTC).timestamp()


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Splits DER into tag and content of its values."""
    parts, offset = [], 0
    while offset < len(der):
        tag, size, offset = der[offset], der[offset + 1], offset + 2
        if size & 0x80:
            count = size & 0x7F
            size, offset = int.from_bytes(der[offset : offset + count], "big"), offset + count
        parts.append((tag, der[offset : offset + size]))
        offset += size
    return parts
