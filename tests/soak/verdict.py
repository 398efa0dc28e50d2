"""What must hold at the end of a soak, and whether it does."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.soak.crowd import Seen
from tests.soak.watch import Sample

# Than before: Python's executor keeps those it has once started, and gRPC some in reserve for the next burst.
MORE_THREADS = min(32, (os.cpu_count() or 1) + 4) + 4
MORE_FILES = 4
# Of resident memory, whichever is more. In ten minutes on two cores that is half a kilobyte for each call.
GROWTH_SHARE, GROWTH_BYTES = 0.1, 2**25
FIRST_SECONDS = 240.0  # a shorter soak says nothing of memory: what comes to stay is still coming
MANNERS = ("patient: OK", "cancelled: CANCELLED", "deadline: DEADLINE_EXCEEDED", "limited: OK", "slow: OK")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must hold.

    Attributes:
        what: must hold, as a sentence.
        found: what was found.
    """

    what: str
    found: str
    holds: bool


def findings(
    before: Sample, during: Sequence[Sample], after: Sample, seen: Seen, log: str, settle_seconds: float, settled: bool
) -> list[Finding]:
    """Args:
    before, after: without any load.
    during: under load, in order.
    log: all that the server has written.
    settle_seconds: that it had after the load, to come to rest; settled: whether it did.
    """
    return [
        Finding("every answer is the right one", _count(seen.wrong, "fault") + _first(seen.faults), not seen.wrong),
        Finding("all kinds of calls were made", _count(sum(seen.codes.values()), "call"), _all_made(seen)),
        Finding("clients were killed in mid-call", str(seen.killed), seen.killed > 0),
        Finding("connections that say nothing are closed", f"{seen.outstayed} were not", not seen.outstayed),
        Finding(
            f"nothing waits or runs, and nobody is connected, {settle_seconds:g} s after the last call",
            f"{after.waiting} waiting, {after.rows} rows, {after.in_flight} calls, {after.connections} connections",
            settled,
        ),
        Finding(
            f"there are no more than {MORE_THREADS} threads beyond those before",
            f"{before.threads} before, {after.threads} after",
            after.threads <= before.threads + MORE_THREADS,
        ),
        Finding(
            f"there are no more than {MORE_FILES} open files beyond those before",
            f"{before.files} before, {after.files} after",
            after.files <= before.files + MORE_FILES,
        ),
        _memory(during),
        Finding(
            "it says that it is serving, under load and after it",
            _health([*during, after]),
            all(sample.health_seconds is not None for sample in (*during, after)),
        ),
        _log(log),
    ]


def _all_made(seen: Seen) -> bool:
    return all(seen.codes[manner] for manner in MANNERS) and bool(seen.deeds)


def _memory(during: Sequence[Sample]) -> Finding:
    """Whether the last fifth of the time needs more than the second; what the first calls bring about is no matter."""
    sizes = [sample.resident_bytes for sample in during]
    fifth = len(sizes) // 5
    what = f"resident memory grows by no more than {GROWTH_SHARE:.0%} or {GROWTH_BYTES >> 20} MiB from the second fifth"
    if not during or during[-1].seconds - during[0].seconds < FIRST_SECONDS:
        return Finding(f"{what} to the last", "too short to say", True)
    early, late = median(sizes[fifth : 2 * fifth]), median(sizes[-fifth:])
    return Finding(
        f"{what} to the last",
        f"{early / 2**20:.1f} MiB, {late / 2**20:.1f} MiB",
        late - early <= max(GROWTH_SHARE * early, GROWTH_BYTES),
    )


def _health(samples: Sequence[Sample]) -> str:
    times = sorted(sample.health_seconds for sample in samples if sample.health_seconds is not None)
    missing = len(samples) - len(times)
    if not times:
        return "never"
    text = f"{len(times)} times, in {1000 * median(times):.1f} ms, at most {1000 * times[-1]:.0f} ms"
    return f"{text}; {missing} times it did not" if missing else text


def _log(log: str) -> Finding:
    wrong = wrong_lines(log)
    return Finding("its log has no error and no traceback", _count(len(wrong), "line") + _first(wrong), not wrong)


def wrong_lines(log: str) -> list[str]:
    """Those of a server's log that tell of errors, or that are not its own."""
    return [line for line in log.splitlines() if _is_wrong(line)]


def _is_wrong(line: str) -> bool:
    try:
        said = json.loads(line)
    except ValueError:  # a library, or Python itself
        return True
    return not isinstance(said, dict) or said.get("level") in ("error", "critical")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _first(words: Sequence[str]) -> str:
    return f", the first: {words[0]}" if words else ""
