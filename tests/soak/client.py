"""A process of clients that make calls, compare answers, cancel and read slowly. A soak runs several and kills some.

It writes its counts so far to standard output, one JSON object per line, and ends on SIGTERM.
"""

import asyncio
import os
import pickle
import random
import signal
import sys
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from tests.soak.answers import EXHAUSTED, RefusedError, WrongAnswerError, assemble, is_same, is_truncated, open_call
from tests.soak.calls import Call
from tests.soak.processes import Counts

REPORT_SECONDS = 0.5
PATIENCE_SECONDS = 300.0
CALLS_PER_CONNECTION = 6
BEHAVIOURS = {"patient": 60, "cancelled": 13, "deadline": 13, "limited": 10, "slow": 4}
SHORT_SECONDS = 0.4  # longest deadline, time limit or time to cancellation
READ_SECONDS = 0.2  # longest pause of a slow reader between messages
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
# Keeps little in flight to a slow reader, so that the rest waits in the server.
SMALL_WINDOW = [*OWN_CONNECTION, ("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]

# gRPC's INTERNAL message when a call ends while the client writes another request: its issue 36066.
BROKEN_WRITE = "Internal error from Core"
# An aged connection is closed after its last call; if that hits its deadline, the client may see the close first.
AGED = "max_age"
NICE = 10  # the clients share the machine with the server, which takes precedence

# If the deadline passes at the server first, HTTP/2 only lets it cancel the call.
EXPECTED = {"cancelled": {"CANCELLED"}, "deadline": {"DEADLINE_EXCEEDED", "CANCELLED"}}


class Clients:
    """Concurrent clients.

    Args:
        calls: Calls with their expected answers.
    """

    def __init__(self, address: str, calls: list[tuple[Call, Any]], seed: int) -> None:
        self.counts = Counts()
        self.stopping = False
        self._address = address
        self._calls = calls
        self._draw = random.Random(seed)

    async def run(self, clients: int) -> None:
        """Runs that many clients until `stopping`."""
        connections = [self._connect() for _ in range(-(-clients // CALLS_PER_CONNECTION))]
        slow = self._connect(SMALL_WINDOW)
        await asyncio.gather(*(self._client(connections[n % len(connections)], slow) for n in range(clients)))
        for channel in (*connections, slow):
            await channel.close()

    def _connect(self, options: list[tuple[str, int]] = OWN_CONNECTION) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._address, [*options, ("grpc.max_receive_message_length", -1)])

    async def _client(self, channel: grpc.aio.Channel, slow: grpc.aio.Channel) -> None:
        while not self.stopping:
            call, expected = self._draw.choice(self._calls)
            [behaviour] = self._draw.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))
            if behaviour == "limited" and not call.limited:
                behaviour = "patient"
            if behaviour == "slow" and not call.streams:
                behaviour = "patient"
            code = await self._call(slow if behaviour == "slow" else channel, call, expected, behaviour)
            self.counts.codes[f"{behaviour}: {code}"] += 1
            self.counts.methods[call.name] += 1
            if code == EXHAUSTED:
                await asyncio.sleep(self._draw.uniform(0.02, 0.2))

    async def _call(self, channel: grpc.aio.Channel, call: Call, expected: Any, behaviour: str) -> str:
        """Makes a call with this behaviour and returns its status code."""
        sent = self._limited(call) if behaviour == "limited" else call
        timeout = self._draw.uniform(0.001, SHORT_SECONDS) if behaviour == "deadline" else PATIENCE_SECONDS
        rpc = open_call(channel, sent, timeout)
        if behaviour == "cancelled":
            asyncio.get_running_loop().call_later(self._draw.uniform(0, SHORT_SECONDS), rpc.cancel)
        try:
            answer = assemble(call, await self._read(rpc, call, behaviour))
        except asyncio.CancelledError:
            if not rpc.cancelled():
                raise
            code = "CANCELLED"
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if error.details() == BROKEN_WRITE and call.name == "ModelStreamInfer" and behaviour != "patient":
                code = "ended while it wrote"
            elif behaviour == "deadline" and AGED in str(error.details()):
                code = "ended with its connection"
            elif code == EXHAUSTED and "grpc-status-details-bin" not in dict(error.trailing_metadata() or ()):
                self._add_fault(call, behaviour, f"refused without a delay: {error.details()}")
            elif code not in EXPECTED.get(behaviour, ()) and code != EXHAUSTED:
                self._add_fault(call, behaviour, f"{code}: {error.details()}")
        except RefusedError as error:
            code = str(error).partition(":")[0]
            if code not in EXPECTED.get(behaviour, ()) and code != EXHAUSTED:
                self._add_fault(call, behaviour, str(error))
        except WrongAnswerError as error:
            code = "OK"
            self._add_fault(call, behaviour, str(error))
        else:
            code = "OK"
            if is_same(call, expected, answer):
                self.counts.right += 1
            elif behaviour == "limited" and is_truncated(call, expected, answer):
                self.counts.partial += 1
            else:
                self._add_fault(call, behaviour, f"answered {answer!r:.2000}, expected {expected!r:.2000}")
        if code == "CANCELLED" and code not in EXPECTED.get(behaviour, ()):
            self._add_fault(call, behaviour, "cancelled, but not by the client")
        return code

    def _add_fault(self, call: Call, behaviour: str, problem: str) -> None:
        self.counts.add_fault(f"{call.name}, {behaviour}: {problem}")

    async def _read(self, rpc: Any, call: Call, behaviour: str) -> list[Any]:
        if not call.streams:
            return [await rpc]
        messages = []
        async for message in rpc:
            messages.append(message)
            if behaviour == "slow":
                await asyncio.sleep(self._draw.uniform(0, READ_SECONDS))
        return messages

    def _limited(self, call: Call) -> Call:
        request: Any = copy(call.requests[0])
        request.options.time_limit.FromNanoseconds(int(self._draw.uniform(0.001, SHORT_SECONDS) * 1e9))
        return replace(call, requests=(request,))


async def main(process: Clients, clients: int) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(process, "stopping", True))
    running = asyncio.create_task(process.run(clients))
    while not running.done():
        process.counts.report()
        await asyncio.wait([running], timeout=REPORT_SECONDS)
    await running
    process.counts.report()


if __name__ == "__main__":
    os.nice(NICE)
    address, calls_file, seed, clients = sys.argv[1:]
    calls = pickle.loads(Path(calls_file).read_bytes())
    asyncio.run(main(Clients(address, calls, int(seed)), int(clients)))
