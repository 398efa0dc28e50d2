"""A name server of one's own, which stands for that of a cluster: it tells the addresses behind a headless Service."""

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
    """Answers for one name, with addresses that may change while clients ask.

    Attributes:
        addresses: IPv4 addresses of the name; without any it does not exist, as a Service without a ready pod.
        target: for gRPC, of the name at a port.
        asked: how often somebody asked for its addresses.
    """

    def __init__(self, name: str, port: int) -> None:
        self.addresses: list[str] = []
        self.asked = 0
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
        found = self.addresses if name == self._name and kind == ADDRESS else []
        self.asked += name == self._name and kind == ADDRESS
        flags = ANSWER if name == self._name and self.addresses else NO_SUCH_NAME
        records = [RECORD.pack(NAME_OF_QUESTION, ADDRESS, INTERNET, 0, 4) + IPv4Address(each).packed for each in found]
        question = data[HEADER.size : end + 4]
        self._transport.sendto(
            HEADER.pack(identity, flags, 1, len(records), 0, 0) + question + b"".join(records), sender
        )


@asynccontextmanager
async def name_server(name: str, port: int) -> AsyncIterator[NameServer]:
    """One for NAME:PORT, on a free port of the loopback interface."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(lambda: NameServer(name, port), (LOOPBACK, 0))
    try:
        yield server
    finally:
        transport.close()


def _dotted(labels: bytes) -> str:
    """The name "dragoman.speech.svc" that stands as 8 dragoman 6 speech 3 svc 0."""
    parts, at = [], 0
    while length := labels[at]:
        parts.append(labels[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(parts)
