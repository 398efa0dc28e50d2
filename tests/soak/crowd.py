"""The processes that call the server: some stay, some are killed or frozen in mid-call, one has no manners."""

import asyncio
import contextlib
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dragoman.local import LOOPBACK, LocalServer

CLIENT, ROUGH = "tests.soak.client", "tests.soak.rough"
STEADY, MORTAL, CLIENTS = 2, 2, 40  # processes, and clients in each
ROUGH_CLIENTS = 30
LIFE_SECONDS = 1.0, 5.0  # of a mortal process
FREEZE_SECONDS = 0.5, 3.0
FREEZING = 0.3  # share of those that are frozen before they are killed
END_SECONDS = 330.0  # the longest that a call takes, and more


class CrowdError(Exception):
    """A process ended by itself; the message is what it said."""


@dataclass
class Seen:
    """What all processes have seen, the killed ones until shortly before.

    Attributes:
        right, partial, wrong: answers as they should be, cut by a time limit, and faults.
        outstayed: connections that said nothing, and were not closed.
        codes: of calls, by how they were made.
        deeds: of those without manners.
        faults: some of them, in words.
        killed, frozen: processes.
    """

    right: int = 0
    partial: int = 0
    wrong: int = 0
    outstayed: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    deeds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    killed: int = 0
    frozen: int = 0


class Crowd:
    """Starts the processes and takes them down.

    Args:
        asks: file of calls and their right answers.
    """

    def __init__(self, server: LocalServer, asks: Path, seed: int) -> None:
        self._server, self._asks = server, asks
        self._draw = random.Random(seed)
        self._told: list[dict[str, Any]] = []  # the last report of each process
        self._reading: set[asyncio.Task[None]] = set()
        self._killed = self._frozen = 0

    @property
    def seen(self) -> Seen:
        seen = Seen(killed=self._killed, frozen=self._frozen)
        for told in self._told:
            for name in ("right", "partial", "wrong", "outstayed"):
                setattr(seen, name, getattr(seen, name) + told.get(name, 0))
            for name in ("codes", "methods", "deeds"):
                getattr(seen, name).update(told.get(name, {}))
            seen.faults += told.get("faults", [])
        return seen

    async def run(self, seconds: float) -> None:
        """Lets them loose for so long.

        Raises:
            CrowdError: one of them failed.
        """
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as tasks:
            for _ in range(STEADY):
                tasks.create_task(self._stay(end, CLIENT, self._server.address, str(self._asks), CLIENTS))
            tasks.create_task(self._stay(end, ROUGH, LOOPBACK, str(self._server.port), ROUGH_CLIENTS))
            for _ in range(MORTAL):
                tasks.create_task(self._die_often(end))

    async def vanish(self, connected: Callable[[], set[int]], most_seconds: float) -> float | None:
        """Freezes a process for good in mid-call, as if its machine had vanished.

        Args:
            connected: the ports of those that the server takes for connected.
            most_seconds: to wait for it to notice.

        Returns:
            seconds until the server had given up its connections, None where it did not.
        """
        loop = asyncio.get_running_loop()
        process = await self._start(CLIENT, self._server.address, str(self._asks), CLIENTS)
        try:
            await self._pass(process, LIFE_SECONDS[1])
            process.send_signal(signal.SIGSTOP)
            self._frozen += 1
            frozen = loop.time()
            ports = {each.laddr.port for each in psutil.Process(process.pid).net_connections("tcp")}
            while ports & connected():
                if loop.time() > frozen + most_seconds:
                    return None
                await asyncio.sleep(1)
            return loop.time() - frozen
        finally:
            process.kill()

    async def _stay(self, end: float, program: str, *arguments: Any) -> None:
        process = await self._start(program, *arguments)
        try:
            await self._pass(process, end - asyncio.get_running_loop().time())
            process.terminate()
            async with asyncio.timeout(END_SECONDS):
                status = await process.wait()
            if status:
                raise CrowdError(f"{program} ended with status {status}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _die_often(self, end: float) -> None:
        while (left := end - asyncio.get_running_loop().time()) > 0:
            process = await self._start(CLIENT, self._server.address, str(self._asks), CLIENTS)
            try:
                await self._pass(process, min(left, self._draw.uniform(*LIFE_SECONDS)))
                if self._draw.random() < FREEZING:
                    process.send_signal(signal.SIGSTOP)
                    self._frozen += 1
                    await asyncio.sleep(min(left, self._draw.uniform(*FREEZE_SECONDS)))
            finally:
                process.kill()
            await process.wait()
            self._killed += 1

    async def _pass(self, process: asyncio.subprocess.Process, seconds: float) -> None:
        """Waits, and raises CrowdError where the process ends meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                status = await process.wait()
                raise CrowdError(f"a process of clients ended by itself, with status {status}")

    async def _start(self, program: str, *arguments: Any) -> asyncio.subprocess.Process:
        *most, clients = arguments
        seed = self._draw.getrandbits(32)
        command = [sys.executable, "-m", program, *most, str(seed), str(clients)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        reading = asyncio.create_task(self._read(process))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        place = len(self._told)
        self._told.append({})
        async for line in process.stdout:
            if line.endswith(b"\n"):  # else its process was killed while it wrote
                self._told[place] = json.loads(line)
