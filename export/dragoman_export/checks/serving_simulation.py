"""Rows that join, age and leave as in the server, each of their steps compared with an uncached model."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman_export.checks.references import Reference, largest_difference
from dragoman_server.runtime.buffers import Memory
from dragoman_server.runtime.runtime import Runtime

ALLOWANCE = 3  # times what rounding was seen to change; two ways to round differ by chance
STRIDE = 3  # steps between groups of newcomers, so that rows are of different age
INSPECTED = 4  # steps of a case at which the whole cache is compared before and after


@dataclass
class Walk:
    """What was found on one case.

    Attributes:
        rows, source: rows in all, and the longest source in tokens.
        steps: decode steps, of which the last ones at the declared maximum.
        compared: log-probabilities compared.
        difference: the largest, in nats.
        rounding: how far from exact the uncached model itself is where it computes the same in single precision.
        stray: what changed in the caches and should not have, as sentences. (That the rest was written, later steps
            show.)
    """

    rows: int
    source: int
    steps: int = 0
    compared: int = 0
    difference: float = 0.0
    rounding: float = 0.0
    stray: list[str] = field(default_factory=list)

    def limit(self, tolerance: float) -> float:
        """The difference that may be: see `limit`."""
        return limit(tolerance, self.rounding)


def limit(tolerance: float, rounding: float) -> float:
    """The difference that may be: the tolerance, or more where single precision is not enough for the model itself.

    There are inputs, long random ones above all, to which a model answers chaotically: its own forward pass in PyTorch
    is then off by as much as the tolerance or more, and no graph can do better than the same order. A model that
    overflows in single precision allows no more: its graphs do so, too.
    """
    return max(tolerance, ALLOWANCE * rounding) if math.isfinite(rounding) else tolerance


def draw_sources(runtime: Runtime, rows: int, longest: int, rng: np.random.Generator) -> list[list[int]]:
    """Random sources, the first of them `longest` tokens, the others 1 to `longest`, all with the end token last."""
    tokens = runtime.manifest.tokens
    lengths = [longest, *rng.integers(1, longest + 1, rows - 1).tolist()]
    usable = np.setdiff1d(
        np.arange(runtime.manifest.shape.source_vocabulary), [tokens.pad, tokens.begin, tokens.end, tokens.unknown]
    )
    return [[*rng.choice(usable, length - 1).tolist(), tokens.end] for length in lengths]


def walk(runtime: Runtime, reference: Reference, rows: int, longest: int) -> Walk:
    """Decodes random rows to the declared maximum over random tokens.

    Groups of 1, 2, 3, ... rows join some steps apart; a row that is done leaves, and the last one moves into its place.
    """
    found = Walk(rows, longest)
    rng = np.random.default_rng([rows, longest])
    steps, vocabulary = runtime.target_capacity, runtime.manifest.shape.target_vocabulary
    sources = draw_sources(runtime, rows, longest, rng)
    targets = rng.integers(0, vocabulary, (rows, steps))
    _scribble(runtime, rng)
    expected = reference.log_probabilities(sources, targets)
    found.rounding = reference.rounding(sources, targets, expected)
    groups = _groups(rows)
    ticks = steps + STRIDE * (len(groups) - 1)
    inspected = set(np.linspace(0, ticks - 1, INSPECTED).astype(int).tolist())
    running: list[int] = []
    for tick in range(ticks):
        if tick % STRIDE == 0 and tick // STRIDE < len(groups):
            joining = groups[tick // STRIDE]
            runtime.encode([sources[i] for i in joining], len(running))
            running += joining
        n = len(running)
        before = _snapshot(runtime) if tick in inspected else None
        scores = runtime.top(n, vocabulary)
        if before is not None:
            found.stray += _stray(runtime, n, before)
        for row in reversed(range(n)):
            i, position = running[row], int(runtime.positions[row])
            distribution = np.empty(vocabulary, np.float32)
            distribution[scores.ids[row]] = scores.log_probabilities[row]
            actual = distribution if reference.whole else distribution[targets[i, position], None]
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
    """0 .. rows-1 in groups of 1, 2, 3, ..."""
    groups: list[list[int]] = []
    start = 0
    while start < rows:
        size = min(len(groups) + 1, rows - start)
        groups.append(list(range(start, start + size)))
        start += size
    return groups


def _scribble(runtime: Runtime, rng: np.random.Generator) -> None:
    """Fills all of the cache, so that a step that looks where it should not, or does not write, is noticed."""
    for memory in _memories(runtime).values():
        planes, max_rows, *rest = memory.shape
        for plane in range(planes):
            row = _stored(3 * rng.standard_normal(rest, np.float32), memory.dtype)
            memory.write(plane, 0, np.broadcast_to(row, (max_rows, *rest)))


def _stored(values: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[np.generic]:
    """Numbers as a cache has them; bf16, which NumPy has not, is the upper half of fp32."""
    return (values.view(np.uint32) >> 16).astype(dtype) if dtype == np.uint16 else values.astype(dtype)


def _memories(runtime: Runtime) -> dict[str, Memory]:
    memories = {"self": runtime.pool.self_cache, "cross": runtime.pool.cross_cache}
    return memories if runtime.pool.last is None else memories | {"last": runtime.pool.last}


def _snapshot(runtime: Runtime) -> dict[str, NDArray[np.generic]]:
    """Copies of the buffers, [planes, max_rows, ...] each."""
    return {name: _contents(memory) for name, memory in _memories(runtime).items()}


def _contents(memory: Memory) -> NDArray[np.generic]:
    planes, max_rows = memory.shape[:2]
    return np.stack([np.stack([memory.read(plane, row) for row in range(max_rows)]) for plane in range(planes)])


def _stray(runtime: Runtime, n: int, before: dict[str, NDArray[np.generic]]) -> list[str]:
    """What changed in the caches since before a step of `n` rows, other than one position of each row's self cache.

    Rows that are not in use but fill up the step, as on a GPU, may change.
    """
    after = _snapshot(runtime)
    for name, contents in after.items():
        filling = slice(n, runtime.padded_rows(n))
        contents[:, filling] = before[name][:, filling]
    changed = after["self"] != before["self"]  # [planes, max_rows, heads, positions, d_head]
    changed[:, np.arange(n), :, runtime.positions[:n]] = False
    wrong = []
    if changed[:, n:].any():
        wrong.append("a row that was not in use was written to")
    if changed.any():
        wrong.append("a position of the self cache changed that is not the new token's")
    wrong += [f"the {name} buffer changed" for name in after if name != "self" and (after[name] != before[name]).any()]
    return wrong
