"""TLS of the gRPC port, one-sided or mutual, with certificates that may be renewed while connections are open."""

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
    """Certificate, key and, for mutual TLS, the certificates of those who may sign clients' certificates.

    A handshake uses what the files hold by then; connections that are open stay.

    Args:
        certificate: PEM file; the server's own certificate first, then those between it and the root.
        key: PEM file of its private key, without a password.
        client_ca: PEM file; None for TLS without clients' certificates.

    Attributes:
        ends: seconds since 1970 at which the certificate ends, None where it does not say so in a way that we know.

    Raises:
        FileError: the files can't be used.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._names = [str(path) for path in (certificate, key, client_ca) if path is not None]
        self.ends: float | None = None
        paths = [Path(name) for name in self._names]
        self.files: WatchedFiles[Configuration] = WatchedFiles("TLS certificates", paths, self._parse)
        self._mutual = client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        given = self.files.value

        def fetch() -> Configuration | None:
            """What gRPC asks for, from a thread of its own, at each handshake: None for what it has already."""
            nonlocal given
            now = self.files.value
            if now is given:
                return None
            given = now
            return now

        return grpc.dynamic_ssl_server_credentials(
            given,
            fetch,  # type: ignore[arg-type]  # gRPC takes None, which its type stubs don't know
            require_client_authentication=self._mutual,
        )

    def _parse(self, contents: list[bytes]) -> Configuration:
        """gRPC says nothing of files that it can't use: it refuses every handshake. So they are checked here."""
        certificate, key, *client_ca = contents
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with _as_file(certificate) as certificate_file, _as_file(key) as key_file:
            try:
                context.load_cert_chain(certificate_file, key_file, password=_no_password)
            except ssl.SSLError as error:
                raise FileError(self._blame(error, certificate)) from None
        for authorities in client_ca:
            if not _holds_certificates(authorities):
                raise FileError(f"{self._names[2]} holds no certificates in PEM form")
        try:
            self.ends = expiry_of(certificate.decode("ascii", "replace"))
        except ValueError:
            self.ends = None
        if self.ends is not None and self.ends < time.time():
            log.error("the certificate has expired, and clients will refuse it", file=self._names[0])
        roots = client_ca[0] if client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=roots)

    def _blame(self, error: ssl.SSLError, certificate: bytes) -> str:
        certificate_name, key_name = self._names[:2]
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"the key in {key_name} is not that of the certificate in {certificate_name}"
        if error.reason and "TOO" in error.reason:  # EE_KEY_TOO_SMALL, CA_MD_TOO_WEAK
            return f"the certificate in {certificate_name} is too weak: {error.reason.lower().replace('_', ' ')}"
        if not _holds_certificates(certificate):
            return f"{certificate_name} holds no certificate in PEM form"
        return f"{key_name} holds no private key in PEM form, or one with a password"


def _holds_certificates(content: bytes) -> bool:
    with _as_file(content) as file:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=file)
        except ssl.SSLError:
            return False
    return True


def _no_password() -> str:
    """OpenSSL would else ask at the terminal, and wait."""
    return ""


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A name by which a library can read what is in memory, since a private key must not be left on a disk."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def expiry_of(pem: str) -> float:
    """Seconds since 1970 at which the first certificate of a PEM text ends.

    The way there (RFC 5280, 4.1): Certificate, tbsCertificate, and in it, behind version (which may be left out),
    serial number, signature algorithm and issuer, the validity: from, until.

    Raises:
        ValueError: it is not a certificate.
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
    """Tag and content of the values that follow each other in DER."""
    parts, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(der[at : at + count], "big"), at + count
        parts.append((tag, der[at : at + size]))
        at += size
    return parts
