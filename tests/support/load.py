"""The load generator: closed loops and Poisson arrivals against a gRPC server."""

import random
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import psutil

from dragoman.v1 import generation_pb2 as pb
from tests.support.http2 import Http2Connection

SERVICE = "/dragoman.v1.GenerationService/"
CONNECTIONS = 4  # maximum
PATIENCE = 60.0  # seconds to wait for an answer before giving up


@dataclass(frozen=True)
class Sample:
    """One measurement.

    Attributes:
        seconds: Wall-clock time.
        tokens: Generated tokens, including end tokens of the model: the useful decode steps.
        sequences: Answered inputs.
        latencies: Latency of each call in seconds.
        failed: Calls without an answer.
        cpu_seconds: CPU time by process: "server" and "load", or "own" in-process.
    """

    seconds: float
    tokens: int
    sequences: int
    latencies: list[float] = field(default_factory=list)
    failed: int = 0
    cpu_seconds: dict[str, float] = field(default_factory=dict)


def percentile(values: Sequence[float], quantile: float) -> float:
    """Returns the value at the nearest rank; NaN without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else float("nan")


@dataclass(frozen=True)
class Call:
    """A finished call: when it was due and done (perf_counter), and its answer (None: failed)."""

    due: float
    done: float
    answer: bytes | None


class LoadGenerator:
    """Sends serialized requests and keeps the answers, which are parsed after the measurement.

    Args:
        address: Host and port of the server.
        server_pid: Process id of the server; its CPU time, with that of its children, is reported beside our own.
        method: "Generate" or "GenerateBatch"; subclasses that override `count` may pass the path of another method.
        requests: Serialized messages, sent in turn, repeatedly.
    """

    def __init__(self, address: tuple[str, int], server_pid: int, method: str, requests: Sequence[bytes]) -> None:
        self.target = (*address, method if method.startswith("/") else SERVICE + method)
        self.server = psutil.Process(server_pid)
        self.batch = method == "GenerateBatch"
        self.requests = requests
        self.turn = cycle(requests)

    def closed(self, concurrency: int, seconds: float) -> Sample:
        """Keeps `concurrency` calls in flight; the next starts when one ends.

        The clock starts when `concurrency` calls have ended. It stops after at least `seconds`, when a multiple of
        `concurrency` calls has ended since: calls of equal length run in lockstep, and a wave must count completely or
        not at all.
        """
        server = self._processes()
        with _Flight(self.target, min(CONNECTIONS, concurrency)) as flight:
            for request in islice(self.turn, concurrency):
                flight.start(request, time.perf_counter())
            ended, clock = 0, None
            calls: list[Call] = []
            while clock is None or clock.seconds < seconds or not calls or len(calls) % concurrency:
                for call in flight.wait(PATIENCE):
                    ended += 1
                    if clock is not None:
                        calls.append(call)
                    elif ended == concurrency:
                        clock = Clock(server)
                    flight.start(next(self.turn), time.perf_counter())
            sample = self._sample(calls, clock)
            flight.finish()
            return sample

    def open(self, rate: float, seconds: float, seed: int) -> Sample:
        """Sends calls as a Poisson process at `rate` per second for `seconds`, whatever the server does.

        Latency counts from the moment a call was due, not from when it was sent, so a stall affects every call that
        was due during it. The sample lasts until the last answer.
        """
        draw = random.Random(seed)
        due = [draw.expovariate(rate)]
        while due[-1] < seconds:
            due.append(due[-1] + draw.expovariate(rate))
        clock = Clock(self._processes())
        calls = self.arrive(due, clock.started)
        return self._sample(calls, clock)

    def arrive(self, due: Sequence[float], started: float) -> list[Call]:
        """Sends calls at fixed times, whatever the server does, and waits until all have ended.

        Args:
            due: Seconds after `started`, ascending.
            started: Start time (perf_counter).
        """
        with _Flight(self.target, CONNECTIONS) as flight:
            calls: list[Call] = []
            sent = 0
            while sent < len(due) or flight.running:
                now = time.perf_counter() - started
                while sent < len(due) and due[sent] <= now:
                    flight.start(next(self.turn), started + due[sent])
                    sent += 1
                calls.extend(flight.wait(due[sent] - now if sent < len(due) else PATIENCE))
            return calls

    def answers(self, concurrency: int) -> list[bytes | None]:
        """Sends each request once and returns the answers in the order of the requests."""
        with _Flight(self.target, 1) as flight:
            answers: dict[int, bytes | None] = {}
            sent = 0
            while len(answers) < len(self.requests):
                while sent < len(self.requests) and flight.running < concurrency:
                    flight.start(self.requests[sent], float(sent))  # `due` holds the index of the request
                    sent += 1
                answers.update((int(call.due), call.answer) for call in flight.wait(PATIENCE))
            return [answers[i] for i in range(sent)]

    def _processes(self) -> list[psutil.Process]:
        """Returns the server's processes; finding them is too slow while calls run."""
        return [self.server, *self.server.children(recursive=True)]

    def _sample(self, calls: list[Call], clock: "Clock") -> Sample:
        seconds, cpu_seconds = clock.seconds, clock.cpu_seconds()
        answered = [call for call in calls if call.answer is not None]
        counted = [self.count(call.answer or b"") for call in answered]
        return Sample(
            seconds=seconds,
            tokens=sum(tokens for tokens, _ in counted),
            sequences=sum(sequences for _, sequences in counted),
            latencies=[call.done - call.due for call in answered],
            failed=len(calls) - len(answered),
            cpu_seconds=cpu_seconds,
        )

    def count(self, answer: bytes) -> tuple[int, int]:
        """Returns the tokens and sequences in an answer."""
        responses = self._responses(answer)
        return sum(map(tokens, responses)), len(responses)

    def _responses(self, answer: bytes) -> list[pb.GenerateResponse]:
        if not self.batch:
            return [pb.GenerateResponse.FromString(answer)]
        items = pb.GenerateBatchResponse.FromString(answer).items
        return [item.response for item in items if item.HasField("response")]


def tokens(response: pb.GenerateResponse) -> int:
    """Returns the number of generated tokens, including end tokens of the model."""
    return sum(h.target_tokens + (h.finish_reason == pb.FINISH_REASON_EOS) for h in response.hypotheses)


class Clock:
    """Wall-clock and CPU time of server and load generator since its creation."""

    def __init__(self, server: Sequence[psutil.Process]) -> None:
        self.server = server
        self._cpu = self._read()
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def cpu_seconds(self) -> dict[str, float]:
        return {name: now - self._cpu[name] for name, now in self._read().items()}

    def _read(self) -> dict[str, float]:
        times = [process.cpu_times() for process in self.server]
        return {"server": sum(t.user + t.system for t in times), "load": time.process_time()}


class _Flight:
    """The calls in flight, over several connections."""

    def __init__(self, target: tuple[str, int, str], connections: int) -> None:
        self.connections = [Http2Connection(*target) for _ in range(connections)]
        self.by_socket = {connection.socket: connection for connection in self.connections}
        self.due: dict[tuple[Http2Connection, int], float] = {}
        self.held: list[tuple[bytes, float]] = []
        self.next = 0

    def __enter__(self) -> "_Flight":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.close()

    @property
    def running(self) -> int:
        return len(self.due) + len(self.held)

    def start(self, request: bytes, due: float) -> None:
        """Queues a call on the next connection with room, or holds it back."""
        for _ in self.connections:
            self.next = (self.next + 1) % len(self.connections)
            connection = self.connections[self.next]
            if connection.room_for(request):
                self.due[connection, connection.send(request)] = due
                return
        self.held.append((request, due))

    def finish(self) -> None:
        """Waits until no call is in flight."""
        while self.running:
            self.wait(PATIENCE)

    def wait(self, timeout: float) -> list[Call]:
        """Sends queued calls and waits up to `timeout` seconds for answers; returns the calls that ended."""
        held, self.held = self.held, []
        for request, due in held:
            self.start(request, due)
        for connection in self.connections:
            connection.flush()
        writers = [c.socket for c in self.connections if c.wants_to_write]
        readable, _, _ = select.select(list(self.by_socket), writers, [], max(timeout, 0.0))
        if not readable and not writers and timeout >= PATIENCE:
            raise TimeoutError(f"no answer from the server for {PATIENCE:.0f} s; {self.running} calls are running")
        calls = []
        for readable_socket in readable:
            connection = self.by_socket[readable_socket]
            ended = connection.receive()
            now = time.perf_counter()
            calls += [Call(self.due.pop((connection, stream)), now, answer) for stream, answer in ended]
        return calls
