"""A DNS server for one name, like that of a cluster for a headless Service."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address

from dragoman.local import LOOPBACK

HEADER = struct.Struct("!6H")  # id, flags, questions, answers, authorities, additional
RECORD = struct.Struct("!HHHIH")  # name (a pointer to the question), type, class, seconds to live, length
ADDRESS, INTERNET, NAME_OF_QUESTION = 1, 1, 0xC000 | HEADER.size
ANSWER, NO_SUCH_NAME = 0x8580, 0x8583  # flags of an answer that is authoritative


class NameServer(asyncio.DatagramProtocol):
    """Resolves one name to addresses that may change.

    Attributes:
        addresses: IPv4 addresses of the name; without any, the name does not exist, like a Service without a ready pod.
        target: gRPC target of the name and port.
        queries: Number of queries for the addresses.
    """

    def __init__(self, name: str, port: int) -> None:
        self.addresses: list[str] = []
        self.queries = 0
        self._name, self._port = name, port
        self.target = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.DatagramTransport = transport  # type: ignore[assignment]
        host, port = transport.get_extra_info("sockname")
        self.target = f"dns://{host}:{port}/{self._name}:{self._port}"

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        identity, _, _, _, _, _ = HEADER.unpack_from(data)
        end = data.index(b"\0", HEADER.size) + 1
        name, (kind, _) = _dotted(data[HEADER.size : end]), struct.unpack_from("!HH", data, end)
        addresses = self.addresses if name == self._name and kind == ADDRESS else []
        self.queries += name == self._name and kind == ADDRESS
        flags = ANSWER if name == self._name and self.addresses else NO_SUCH_NAME
        records = [
            RECORD.pack(NAME_OF_QUESTION, ADDRESS, INTERNET, 0, 4) + IPv4Address(address).packed
            for address in addresses
        ]
        question = data[HEADER.size : end + 4]
        self._transport.sendto(
            HEADER.pack(identity, flags, 1, len(records), 0, 0) + question + b"".join(records), sender
        )


@asynccontextmanager
async def name_server(name: str, port: int) -> AsyncIterator[NameServer]:
    """Runs a name server for NAME:PORT on a free port of the loopback interface."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(lambda: NameServer(name, port), (LOOPBACK, 0))
    try:
        yield server
    finally:
        transport.close()


def _dotted(labels: bytes) -> str:
    """Decodes a name such as "dragoman.speech.svc", encoded as 8 dragoman 6 speech 3 svc 0."""
    parts, at = [], 0
    while length := labels[at]:
        parts.append(labels[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(parts)
