"""`make soak`: ten minutes of everything clients do to a server, then a check of what they left behind.

A server of the shipped model first answers some hundred different calls one by one; these are the expected answers.
Then several processes overload it at once:

- calls of every kind, unary and streaming, of both protocols, with answers compared with the expected ones,
- calls cancelled at random moments, or with random deadlines or time limits,
- streams read slowly, or not at all,
- client processes killed or frozen in mid-call,
- connections that send nothing, incomplete data or garbage, at each level from TCP to protobuf.

Connections reach their maximum age meanwhile, so clients reconnect now and then. At the end the server must be back in
its initial state; `tests.soak.findings` lists the checks. The exit status is 0 if all checks pass; otherwise standard
error names each failed one.

    make soak                          ten minutes
    make soak ARGS="--seconds 20"      a quick check
"""

import asyncio
import json
import pickle
import shlex
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import grpc
import psutil
import typer
from rich.console import Console
from rich.live import Live

from dragoman.local import LocalServer
from tests.soak.answers import assemble, is_same, open_call
from tests.soak.calls import Call, draw_calls
from tests.soak.findings import Finding, check, print_report, progress_table
from tests.soak.monitor import Monitor, Sample
from tests.soak.processes import ClientProcesses
from tests.support.servers import G2PServer

# Too little for the load, so that requests wait and some are refused.
SERVER = ("--max-rows", "24", "--queue-size", "40", "--max-connection-age-seconds", "15")
SAMPLE_SECONDS = 0.5
SETTLE_SECONDS = 10.0
PATIENCE_SECONDS = 60.0
LONG_SECONDS = 150.0  # shortest soak that checks whether the server notices a vanished client
VANISHED_SECONDS = 100.0


async def expected_answers(address: str, calls: list[Call]) -> list[tuple[Call, object]]:
    """Returns calls with their answers from an otherwise idle server."""
    answers: list[tuple[Call, object]] = []
    async with grpc.aio.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        for call in calls:
            rpc = open_call(channel, call, PATIENCE_SECONDS)
            messages = [message async for message in rpc] if call.streams else [await rpc]
            answers.append((call, assemble(call, messages)))
    return answers


async def soak(
    server: LocalServer, folder: Path, seconds: float, count: int, seed: int, console: Console
) -> list[Finding]:
    """Runs all of the soak except stopping the server, and writes soak.json."""
    console.print(f"Collecting the expected answers of {count} different calls from {server.address}")
    calls = await expected_answers(server.address, draw_calls(count, seed))
    file = folder / "calls.pickle"
    file.write_bytes(pickle.dumps(calls))
    async with Monitor(server) as monitor:
        before = await wait_until_idle(monitor)
        processes = ClientProcesses(server, file, seed)
        vanishing = None
        if seconds >= LONG_SECONDS:
            vanishing = asyncio.create_task(processes.vanish(monitor.peers, VANISHED_SECONDS))
        await run_load(monitor, processes, seconds, console)
        noticed = await vanishing if vanishing else None
        during = [sample for sample in monitor.samples if sample.seconds <= monitor.samples[0].seconds + seconds]
        after = await wait_until_idle(monitor)
        again = await expected_answers(server.address, [call for call, _ in calls])
    counts = processes.counts
    findings = check(before, during, after, counts, server.log.read_text(errors="replace"), SETTLE_SECONDS)
    changed = sum(not is_same(call, expected, now) for (call, expected), (_, now) in zip(calls, again, strict=True))
    findings.append(Finding("repeated calls get the same answers", f"{changed} of {count} differ", not changed))
    if vanishing:
        claim = f"a client whose machine seems to have vanished is noticed within {VANISHED_SECONDS:g} s"
        observed = "it was not" if noticed is None else f"{noticed:.0f} s"
        findings.append(Finding(claim, observed, noticed is not None))
    print_report(console, counts, during, findings)
    result = {
        "counts": vars(counts),
        "before": asdict(before),
        "during": [asdict(sample) for sample in during],
        "after": asdict(after),
        "findings": [asdict(finding) for finding in findings],
    }
    (folder / "soak.json").write_text(json.dumps(result))
    return findings


async def run_load(monitor: Monitor, processes: ClientProcesses, seconds: float, console: Console) -> None:
    """Runs the client processes, and shows and records the state of the server meanwhile."""
    end = time.monotonic() + seconds
    sampling = asyncio.create_task(monitor.run(SAMPLE_SECONDS))
    running = asyncio.create_task(processes.run(seconds))
    with Live(console=console, auto_refresh=False) as live:
        while not running.done():
            await asyncio.wait([running], timeout=SAMPLE_SECONDS)
            if monitor.samples:
                table = progress_table(processes.counts, monitor.samples[-1], end - time.monotonic())
                live.update(table, refresh=True)
    sampling.cancel()
    await running


async def wait_until_idle(monitor: Monitor) -> Sample:
    """Returns a sample of the idle server, or of a busy one after SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        sample = await monitor.sample()
        if sample.idle or time.monotonic() > deadline:
            return sample
        await asyncio.sleep(SAMPLE_SECONDS)


def main(
    seconds: Annotated[float, typer.Option(min=5, help="Duration of the load.")] = 600.0,
    different: Annotated[int, typer.Option(min=20, help="Number of different calls to choose from.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the calls and of the clients' behavior.")] = 1,
    serve: Annotated[str, typer.Option(help="Additional arguments of dragoman-serve, in one string.")] = "",
    output: Annotated[Path | None, typer.Option(help="Directory for soak.json and the server's log.")] = None,
) -> None:
    """Soaks a server, and reports what it leaves behind."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = output or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with G2PServer(*SERVER, *shlex.split(serve), log=folder / "server.log") as server:
            try:
                findings = asyncio.run(soak(server, folder, seconds, different, seed, Console()))
            except (OSError, psutil.Error, grpc.RpcError):
                if server.process.poll() is None:
                    raise
                findings = [Finding("the server stays alive", f"its last log lines:\n{server.log_tail(3)}", False)]
            status = server.stop()
    findings.append(Finding("it ends with exit status 0", str(status), status == 0))
    failed = [finding for finding in findings if not finding.holds]
    for finding in failed:
        print(f"Failed: {finding.claim}: {finding.observed}", file=sys.stderr)
    raise typer.Exit(code=bool(failed))


if __name__ == "__main__":
    typer.run(main)
