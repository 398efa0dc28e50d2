"""Simulates serving: rows join, age and leave as in an engine, and each step is compared with an uncached model."""

from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dragoman_export.checks.affordable import longest_target
from dragoman_export.checks.references import Reference
from dragoman_export.checks.tolerance import allowed_difference, largest_difference
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.runtime.buffers import Memory
from dragoman_server.runtime.runtime import Runtime

STRIDE = 3  # steps between groups of joining rows, so that rows are of different age
INSPECTED_STEPS = 4  # steps of a case at which the whole cache is compared before and after


@dataclass
class SimulatedCase:
    """The result of one simulation. The manifest keeps all fields but `stray_writes`, by name.

    Attributes:
        rows: Number of rows in all.
        source: Longest source in tokens.
        steps: Decoder steps, the last ones at the maximum length.
        compared: Number of log-probabilities compared.
        difference: Largest difference, in nats.
        rounding: Distance of the uncached model in single precision from the exact result.
        stray_writes: Sentences on cache contents that changed and should not have. (Missing writes show in later
            steps.)
    """

    rows: int
    source: int
    steps: int = 0
    compared: int = 0
    difference: float = 0.0
    rounding: float = 0.0
    stray_writes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "stray_writes"}

    def allowed(self, tolerance: float) -> float:
        return allowed_difference(tolerance, self.rounding)


def draw_sources(manifest: Manifest, rows: int, longest: int, rng: np.random.Generator) -> list[list[int]]:
    """Returns random sources that end with the end token: the first has `longest` tokens, the others 1 to `longest`."""
    tokens = manifest.tokens
    lengths = [longest, *rng.integers(1, longest + 1, rows - 1).tolist()]
    usable = np.setdiff1d(
        np.arange(manifest.shape.source_vocabulary), [tokens.pad, tokens.begin, tokens.end, tokens.unknown]
    )
    return [[*rng.choice(usable, length - 1).tolist(), tokens.end] for length in lengths]


@dataclass(frozen=True)
class ExpectedCase:
    """Random rows, and what the reference computes for them.

    Attributes:
        sources: Token ids of each row with the end token; the first is the longest.
        targets: Token ids [rows, steps].
        log_probabilities: See `Reference`.
        rounding: Distance of the uncached model in single precision from the exact result.
    """

    sources: list[list[int]]
    targets: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]
    rounding: float


def expect(manifest: Manifest, reference: Reference, rows: int, longest: int) -> ExpectedCase:
    """Draws sources, and targets of the maximum length or of `longest_target`, and runs the reference on them."""
    rng = np.random.default_rng([rows, longest])
    sources = draw_sources(manifest, rows, longest, rng)
    targets = rng.integers(0, manifest.shape.target_vocabulary, (rows, longest_target(manifest, rows)))
    expected = reference.log_probabilities(sources, targets)
    return ExpectedCase(sources, targets, expected, reference.rounding(sources, targets, expected))


def simulate_serving(runtime: Runtime, case: ExpectedCase) -> SimulatedCase:
    """Decodes the targets.

    Groups of 1, 2, 3, ... rows join some steps apart. A finished row leaves, and the last one moves into its place.
    """
    sources, targets, expected = case.sources, case.targets, case.log_probabilities
    rows, steps = targets.shape
    vocabulary = runtime.manifest.shape.target_vocabulary
    found = SimulatedCase(rows, len(sources[0]), rounding=case.rounding)
    _fill_with_noise(runtime, np.random.default_rng([rows, len(sources[0])]))
    groups = _groups(rows)
    ticks = steps + STRIDE * (len(groups) - 1)
    inspected = set(np.linspace(0, ticks - 1, INSPECTED_STEPS).astype(int).tolist())
    running: list[int] = []
    for tick in range(ticks):
        if tick % STRIDE == 0 and tick // STRIDE < len(groups):
            joining = groups[tick // STRIDE]
            runtime.encode([sources[i] for i in joining], len(running))
            running += joining
        n = len(running)
        before = _checksums(runtime, runtime.positions[:n]) if tick in inspected else None
        scores = runtime.top(n, vocabulary)
        if before is not None:
            found.stray_writes += _stray_writes(runtime, n, before)
        for row in reversed(range(n)):
            i, position = running[row], int(runtime.positions[row])
            distribution = np.empty(vocabulary, np.float32)
            distribution[scores.ids[row]] = scores.log_probabilities[row]
            actual = distribution if expected.shape[-1] == vocabulary else distribution[targets[i, position], None]
            found.difference = max(found.difference, largest_difference(actual, expected[i, position]))
            found.compared += actual.size
            runtime.tokens[row, 0] = targets[i, position]
            runtime.positions[row] += 1
            if position + 1 == steps:
                last = len(running) - 1
                if row != last:
                    runtime.move_row(last, row)
                    running[row] = running[last]
                running.pop()
        found.steps += 1
    return found


def _groups(rows: int) -> list[list[int]]:
    """Returns 0 .. rows-1 in groups of 1, 2, 3, ..."""
    groups: list[list[int]] = []
    start = 0
    while start < rows:
        size = min(len(groups) + 1, rows - start)
        groups.append(list(range(start, start + size)))
        start += size
    return groups


def _fill_with_noise(runtime: Runtime, rng: np.random.Generator) -> None:
    """Fills the whole cache, so that a step that reads the wrong place, or does not write, is noticed."""
    for memory in _memories(runtime).values():
        planes, max_rows, *rest = memory.shape
        for plane in range(planes):
            row = _as_stored(3 * rng.standard_normal(rest, np.float32), memory.dtype)
            memory.write(plane, 0, np.broadcast_to(row, (max_rows, *rest)))


def _as_stored(values: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[np.generic]:
    """Converts numbers to the cache's type; bf16, which NumPy lacks, is the upper half of fp32."""
    return (values.view(np.uint32) >> 16).astype(dtype) if dtype == np.uint16 else values.astype(dtype)


def _memories(runtime: Runtime) -> dict[str, Memory]:
    memories = {"self": runtime.pool.self_cache, "cross": runtime.pool.cross_cache}
    return memories if runtime.pool.last is None else memories | {"last": runtime.pool.last}


Marks = dict[str, NDArray[np.int64]]
"""Checksums of each row in each plane [planes, max_rows], by name of the buffer."""


def _checksums(runtime: Runtime, positions: NDArray[np.int32]) -> Marks:
    """Returns checksums of the buffers; those of the self cache leave out one position of each of the first rows.

    Args:
        runtime: The runtime.
        positions: The position to leave out of each row in use.
    """
    marks: Marks = {}
    for name, memory in _memories(runtime).items():
        marks[name] = np.empty(memory.shape[:2], np.int64)
        for plane, row in np.ndindex(memory.shape[:2]):
            contents = memory.read(plane, row)
            if name == "self" and row < len(positions):
                contents[:, positions[row]] = 0
            marks[name][plane, row] = crc32(contents.data)
    return marks


def _stray_writes(runtime: Runtime, n: int, before: Marks) -> list[str]:
    """Returns what a step of `n` rows changed in the caches besides one position of each row's self cache.

    Unused rows that pad the step, as on a GPU, may change.
    """
    after = _checksums(runtime, runtime.positions[:n])
    changed = {name: after[name] != before[name] for name in after}
    for rows in changed.values():
        rows[:, n : runtime.padded_rows(n)] = False
    sentences = []
    if changed["self"][:, n:].any():
        sentences.append("a row that was not in use was written to")
    if changed["self"].any():
        sentences.append("a position of the self cache changed that is not the new token's")
    return sentences + [f"the {name} buffer changed" for name in after if name != "self" and changed[name].any()]
