"""The course of a soak: right answers, load, rest, and another look."""

import asyncio
import json
import pickle
import time
from dataclasses import asdict
from pathlib import Path

import grpc
from rich.console import Console
from rich.live import Live

from dragoman.local import LocalServer
from tests.soak.answers import open_call, same, whole
from tests.soak.asks import Ask, draw_asks
from tests.soak.crowd import Crowd
from tests.soak.show import progress, report
from tests.soak.verdict import Finding, findings
from tests.soak.watch import Sample, Watcher

# So little that what comes has to wait, and some of it is refused.
SERVER = ("--max-rows", "24", "--queue-size", "40", "--max-connection-age-seconds", "15")
LOOK_SECONDS = 0.5
SETTLE_SECONDS = 10.0
PATIENCE_SECONDS = 60.0
LONG_SECONDS = 150.0  # from which on there is time to see whether the server notices a client that has vanished
VANISHED_SECONDS = 100.0


async def right_answers(address: str, asks: list[Ask]) -> list[tuple[Ask, object]]:
    """Of a server that does nothing else."""
    answers: list[tuple[Ask, object]] = []
    async with grpc.aio.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        for ask in asks:
            call = open_call(channel, ask, PATIENCE_SECONDS)
            answers.append((ask, whole(ask, [each async for each in call] if ask.streams else [await call])))
    return answers


async def soak(
    server: LocalServer, folder: Path, seconds: float, count: int, seed: int, console: Console
) -> list[Finding]:
    """All of it, but for the end of the server."""
    console.print(f"Asking {count} different things for their right answers, at {server.address}")
    asks = await right_answers(server.address, draw_asks(count, seed))
    file = folder / "asks.pickle"
    file.write_bytes(pickle.dumps(asks))
    async with Watcher(server) as watcher:
        before = await at_rest(watcher)
        crowd = Crowd(server, file, seed)
        end = time.monotonic() + seconds
        watching = asyncio.create_task(watcher.watch(LOOK_SECONDS))
        running = asyncio.create_task(crowd.run(seconds))
        vanishing = (
            asyncio.create_task(crowd.vanish(watcher.peers, VANISHED_SECONDS)) if seconds >= LONG_SECONDS else None
        )
        with Live(console=console, auto_refresh=False) as live:
            while not running.done():
                await asyncio.wait([running], timeout=LOOK_SECONDS)
                if watcher.samples:
                    live.update(progress(crowd.seen, watcher.samples[-1], end - time.monotonic()), refresh=True)
        watching.cancel()
        await running
        noticed = await vanishing if vanishing else None
        during = [sample for sample in watcher.samples if sample.seconds <= watcher.samples[0].seconds + seconds]
        after = await at_rest(watcher)
        settled = is_at_rest(after)
        again = await right_answers(server.address, [ask for ask, _ in asks])
    found = findings(before, during, after, crowd.seen, server.log.read_text(errors="replace"), SETTLE_SECONDS, settled)
    changed = sum(not same(ask, right, now) for (ask, right), (_, now) in zip(asks, again, strict=True))
    found.append(Finding("asked again, it gives the same answers", f"{changed} of {count} are others", not changed))
    if vanishing:
        what = f"a client whose machine seems to have vanished is noticed within {VANISHED_SECONDS:g} s"
        found.append(Finding(what, "it was not" if noticed is None else f"{noticed:.0f} s", noticed is not None))
    report(console, crowd.seen, during, found)
    (folder / "soak.json").write_text(
        json.dumps(
            {
                "seen": vars(crowd.seen),
                "before": asdict(before),
                "during": [asdict(sample) for sample in during],
                "after": asdict(after),
                "findings": [asdict(finding) for finding in found],
            }
        )
    )
    return found


async def at_rest(watcher: Watcher) -> Sample:
    """A look at the server once nothing goes on in it, or after SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        sample = await watcher.look()
        if is_at_rest(sample) or time.monotonic() > deadline:
            return sample
        await asyncio.sleep(LOOK_SECONDS)


def is_at_rest(sample: Sample) -> bool:
    return not (sample.waiting or sample.rows or sample.in_flight or sample.connections)
