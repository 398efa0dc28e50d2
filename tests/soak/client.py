"""A process of clients that call, compare, give up, and read slowly. The soak starts several, and kills some.

It writes what it has seen so far to standard output, one JSON object a line, and ends on SIGTERM.
"""

import asyncio
import json
import os
import pickle
import random
import signal
import sys
from collections import Counter
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from tests.soak.answers import EXHAUSTED, RefusedError, WrongAnswerError, beginning, open_call, same, whole
from tests.soak.asks import Ask

REPORT_SECONDS = 0.5
PATIENCE_SECONDS = 300.0
MOST_FAULTS = 5  # told in full
CALLS_PER_CONNECTION = 6
MANNERS = {"patient": 60, "cancelled": 13, "deadline": 13, "limited": 10, "slow": 4}
GIVE_UP_SECONDS = 0.4
READ_SECONDS = 0.2  # between two messages, for a slow reader
ALONE = [("grpc.use_local_subchannel_pool", 1)]
# Little is on its way to a slow reader, so that the rest waits in the server.
SMALL_WINDOW = [*ALONE, ("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]

# What gRPC's client says, as INTERNAL, where a call ends while it writes another request: its issue 36066.
BROKEN_WRITE = "Internal error from Core"
# An aged connection is closed behind its last call; where that met its deadline, the close may be heard of first.
AGED = "max_age"
# They share the machine with the server, which on other days has it for itself.
NICE = 10

# Where a deadline passes at the server first, all that HTTP/2 lets it do is to cancel the call.
EXPECTED = {"cancelled": {"CANCELLED"}, "deadline": {"DEADLINE_EXCEEDED", "CANCELLED"}}


class Tally:
    """What one process has seen.

    Attributes:
        right, partial, wrong: answers as they should be, those that a time limit has cut, and faults.
        codes: of calls, by how they were made; methods: how often each was called.
        faults: what should not have been, in words.
    """

    def __init__(self) -> None:
        self.right = self.wrong = self.partial = 0
        self.codes: Counter[str] = Counter()
        self.methods: Counter[str] = Counter()
        self.faults: list[str] = []

    def fault(self, ask: Ask, manner: str, problem: str) -> None:
        self.wrong += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(f"{ask.name}, {manner}: {problem}")

    def report(self) -> None:
        print(json.dumps(vars(self)), flush=True)


class Clients:
    """Several at once.

    Args:
        asks: calls, each with its right answer.
    """

    def __init__(self, address: str, asks: list[tuple[Ask, Any]], seed: int) -> None:
        self.tally = Tally()
        self.stopping = False
        self._address = address
        self._asks = asks
        self._draw = random.Random(seed)

    async def run(self, clients: int) -> None:
        """Until `stopping`."""
        connections = [self._connect() for _ in range(-(-clients // CALLS_PER_CONNECTION))]
        slow = self._connect(SMALL_WINDOW)
        await asyncio.gather(*(self._client(connections[n % len(connections)], slow) for n in range(clients)))
        for channel in (*connections, slow):
            await channel.close()

    def _connect(self, options: list[tuple[str, int]] = ALONE) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._address, [*options, ("grpc.max_receive_message_length", -1)])

    async def _client(self, channel: grpc.aio.Channel, slow: grpc.aio.Channel) -> None:
        while not self.stopping:
            ask, right = self._draw.choice(self._asks)
            [manner] = self._draw.choices(list(MANNERS), list(MANNERS.values()))
            if manner == "limited" and not ask.limited:
                manner = "patient"
            if manner == "slow" and not ask.streams:
                manner = "patient"
            code = await self._call(slow if manner == "slow" else channel, ask, right, manner)
            self.tally.codes[f"{manner}: {code}"] += 1
            self.tally.methods[ask.name] += 1
            if code == EXHAUSTED:
                await asyncio.sleep(self._draw.uniform(0.02, 0.2))

    async def _call(self, channel: grpc.aio.Channel, ask: Ask, right: Any, manner: str) -> str:
        """The status of a call that was made in this manner."""
        asked = self._limited(ask) if manner == "limited" else ask
        timeout = self._draw.uniform(0.001, GIVE_UP_SECONDS) if manner == "deadline" else PATIENCE_SECONDS
        call = open_call(channel, asked, timeout)
        if manner == "cancelled":
            asyncio.get_running_loop().call_later(self._draw.uniform(0, GIVE_UP_SECONDS), call.cancel)
        try:
            found = whole(ask, await self._read(call, ask, manner))
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            code = "CANCELLED"
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if error.details() == BROKEN_WRITE and ask.name == "ModelStreamInfer" and manner != "patient":
                code = "ended while it wrote"
            elif manner == "deadline" and AGED in str(error.details()):
                code = "ended with its connection"
            elif code == EXHAUSTED and "grpc-status-details-bin" not in dict(error.trailing_metadata() or ()):
                self.tally.fault(ask, manner, f"refused without a delay: {error.details()}")
            elif code not in EXPECTED.get(manner, ()) and code != EXHAUSTED:
                self.tally.fault(ask, manner, f"{code}: {error.details()}")
        except RefusedError as error:
            code = str(error).partition(":")[0]
            if code not in EXPECTED.get(manner, ()) and code != EXHAUSTED:
                self.tally.fault(ask, manner, str(error))
        except WrongAnswerError as error:
            code = "OK"
            self.tally.fault(ask, manner, str(error))
        else:
            code = "OK"
            if same(ask, right, found):
                self.tally.right += 1
            elif manner == "limited" and beginning(ask, right, found):
                self.tally.partial += 1
            else:
                self.tally.fault(ask, manner, f"answered {found!r:.2000}, but right is {right!r:.2000}")
        if code == "CANCELLED" and code not in EXPECTED.get(manner, ()):
            self.tally.fault(ask, manner, "cancelled, but not by the client")
        return code

    async def _read(self, call: Any, ask: Ask, manner: str) -> list[Any]:
        if not ask.streams:
            return [await call]
        messages = []
        async for message in call:
            messages.append(message)
            if manner == "slow":
                await asyncio.sleep(self._draw.uniform(0, READ_SECONDS))
        return messages

    def _limited(self, ask: Ask) -> Ask:
        request: Any = copy(ask.requests[0])
        request.options.time_limit.FromNanoseconds(int(self._draw.uniform(0.001, GIVE_UP_SECONDS) * 1e9))
        return replace(ask, requests=(request,))


async def main(process: Clients, clients: int) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(process, "stopping", True))
    running = asyncio.create_task(process.run(clients))
    while not running.done():
        process.tally.report()
        await asyncio.wait([running], timeout=REPORT_SECONDS)
    await running
    process.tally.report()


if __name__ == "__main__":
    os.nice(NICE)
    address, asks_file, seed, clients = sys.argv[1:]
    asks = pickle.loads(Path(asks_file).read_bytes())
    asyncio.run(main(Clients(address, asks, int(seed)), int(clients)))
