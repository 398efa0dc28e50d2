"""Checks that device memory stays constant over requests of all kinds, in any order."""

import numpy as np

from dragoman_server.bundle.load import Bundle
from dragoman_server.core.search import LogitEdits, StepRequest
from dragoman_server.runtime.device import Device
from dragoman_server.runtime.device_memory import device_memory
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions

MAX_ROWS = 64
SAMPLES = 10
STEP_REQUESTS = (
    StepRequest(1),
    StepRequest(1),
    StepRequest(8),
    StepRequest(1, temperature=0.7),
    StepRequest(4, edits=LogitEdits([4, 5, 6], [1.2, 1.0, 1.0], [0.0, -np.inf, 0.0])),
    StepRequest(1, attention=True),
    StepRequest(2, vocabulary=tuple(range(2, 20))),
)


def memory_over_requests(bundle: Bundle, device: Device, requests: int) -> list[tuple[int, int]]:
    """Returns samples of the number of answered requests and the device bytes in use.

    Requests of all lengths and kinds start and end: steps have any number of rows and any mix of step requests.
    """
    runtime = Runtime(Sessions(bundle, device, 1), MAX_ROWS)
    runtime.warm_up()
    rng = np.random.default_rng(0)
    vocabulary = runtime.manifest.shape.source_vocabulary
    running: list[tuple[int, StepRequest]] = []  # by row: remaining steps, and the step request
    found: list[tuple[int, int]] = []
    started = answered = 0
    while answered < requests:
        starting = min(int(rng.integers(0, 9)), MAX_ROWS - len(running), requests - started)
        if starting:
            lengths = rng.integers(1, runtime.source_capacity + 1, starting)
            runtime.encode([rng.integers(4, vocabulary, length).tolist() for length in lengths], len(running))
            steps = rng.integers(1, runtime.target_capacity + 1, starting).tolist()
            running += [(count, STEP_REQUESTS[int(rng.integers(len(STEP_REQUESTS)))]) for count in steps]
            started += starting
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
                found.append((answered, device_memory(device).used))
    return found
