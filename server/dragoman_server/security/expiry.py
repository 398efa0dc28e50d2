"""When a certificate ends: Python's standard library tells that only of one that a peer has just shown."""

import datetime
import ssl

SEQUENCE, UTC_TIME, GENERALIZED_TIME, VERSION = 0x30, 0x17, 0x18, 0xA0
END = "-----END CERTIFICATE-----"


def ends_at(pem: str) -> float:
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
