"""Whether memory stays the same, whatever is asked for and in whichever order."""

import numpy as np

from dragoman_server.bundle.load import Bundle
from dragoman_server.core.search import LogitEdits, StepRequest
from dragoman_server.runtime.device import Device
from dragoman_server.runtime.device_memory import device_memory
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions

SLOTS = 64
SAMPLES = 10
WAYS = (
    StepRequest(1),
    StepRequest(1),
    StepRequest(8),
    StepRequest(1, temperature=0.7),
    StepRequest(4, edits=LogitEdits([4, 5, 6], [1.2, 1.0, 1.0], [0.0, -np.inf, 0.0])),
    StepRequest(1, attention=True),
    StepRequest(2, vocabulary=tuple(range(2, 20))),
)


def memory_over_requests(bundle: Bundle, device: Device, requests: int) -> list[tuple[int, int]]:
    """How many requests were answered, and bytes of the device in use then.

    Requests of every length and kind come and go: a step has any number of rows and any mixture of step requests.
    """
    runtime = Runtime(Sessions(bundle, device, 1), SLOTS)
    runtime.warm_up()
    rng = np.random.default_rng(0)
    vocabulary = runtime.manifest.shape.source_vocabulary
    running: list[tuple[int, StepRequest]] = []  # by row: steps to go, and what is asked for
    found: list[tuple[int, int]] = []
    started = answered = 0
    while answered < requests:
        newcomers = min(int(rng.integers(0, 9)), SLOTS - len(running), requests - started)
        if newcomers:
            lengths = rng.integers(1, runtime.source_capacity + 1, newcomers)
            runtime.encode([rng.integers(4, vocabulary, length).tolist() for length in lengths], len(running))
            steps = rng.integers(1, runtime.target_capacity + 1, newcomers).tolist()
            running += [(each, WAYS[int(rng.integers(len(WAYS)))]) for each in steps]
            started += newcomers
        rows = len(running)
        if not rows:
            continue
        scores = runtime.step([step_request for _, step_request in running])
        runtime.tokens[:rows, 0] = [scores.best(row)[0] for row in range(rows)]
        runtime.positions[:rows] += 1
        running = [(steps - 1, step_request) for steps, step_request in running]
        for row in reversed([row for row, (steps, _) in enumerate(running) if not steps]):
            last = len(running) - 1
            if row != last:
                runtime.move_row(last, row)
                running[row] = running[last]
            running.pop()
            answered += 1
            if answered * SAMPLES // requests > (answered - 1) * SAMPLES // requests:
                found.append((answered, device_memory(device)[2]))
    return found
