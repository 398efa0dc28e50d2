"""Asks a server about a model in many calls at once, with others' requests in between."""

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dragoman import Client, Result
from tests.parity.library import Answer
from tests.parity.models import Question
from tests.parity.settings import Setting

IN_FLIGHT = 16  # calls at once
STRANGERS = 4  # further calls at once
TOGETHER = 5  # most texts in a call
TOP = 8  # tokens of a position whose log-probabilities are compared
SECONDS = 300.0  # timeout of a call
# What strangers ask for.
_OPTIONS: Sequence[dict[str, Any]] = (
    {"sample": True, "temperature": 1.5, "num_hypotheses": 3, "max_new_tokens": 30},
    {"beam_size": 3, "num_hypotheses": 2, "max_new_tokens": 9},
    {"repetition_penalty": 1.3, "max_new_tokens": 40},
)


@dataclass(frozen=True)
class Task:
    """A text and the setting to ask it under.

    Attributes:
        detailed: Whether to ask for log-probabilities, for which some searches take another path.
    """

    question: Question
    setting: Setting
    detailed: bool


def ask(address: str, model: str, tasks: Sequence[Task], seed: int, advance: Callable[[int], None]) -> list[Answer]:
    """Asks a model texts under their settings, those of the same setting a few in a call, in random order.

    Args:
        address: Address of the server.
        model: Name of the model.
        tasks: What to ask.
        seed: Seed of the order, and of what strangers do.
        advance: Called with the number of answers that have arrived.

    Raises:
        DragomanError: The server is unavailable, or refuses an input.
    """
    answers: dict[int, Answer] = {}

    def call(indices: Sequence[int]) -> None:
        first = tasks[indices[0]]
        details = {"log_probabilities": True, "top_tokens": TOP} if first.detailed else {"tokens": True}
        results = client.generate_batch(
            [tasks[index].question.source for index in indices],
            model=model,
            timeout=SECONDS,
            **first.setting.ours,
            **details,
        )
        for index, result in zip(indices, results, strict=True):
            if not isinstance(result, Result):
                raise result
            answers[index] = _answer(result, tasks[index].question)
        advance(len(indices))

    def disturb(number: int) -> None:
        draw = random.Random(seed + number)
        while not over.is_set():
            sources = [task.question.source for task in draw.choices(tasks, k=draw.randint(1, TOGETHER))]
            client.generate_batch(sources, model=model, timeout=SECONDS, **draw.choice(_OPTIONS))

    over = threading.Event()
    with Client(address) as client, ThreadPoolExecutor(STRANGERS) as strangers:
        disturbed = [strangers.submit(disturb, number) for number in range(STRANGERS)]
        try:
            with ThreadPoolExecutor(IN_FLIGHT) as own:
                list(own.map(call, _calls(tasks, seed)))
        finally:
            over.set()
        for stranger in disturbed:
            stranger.result()
    return [answers[index] for index in range(len(tasks))]


def _calls(tasks: Sequence[Task], seed: int) -> list[list[int]]:
    """Returns indices of tasks that share a call."""
    groups: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        groups[repr(task.setting.ours), task.detailed].append(index)
    calls = [
        indices[start : start + TOGETHER] for indices in groups.values() for start in range(0, len(indices), TOGETHER)
    ]
    random.Random(seed).shuffle(calls)
    return calls


def _answer(result: Result, question: Question) -> Answer:
    best = result.best
    tokens = best.tokens[int(question.forced is not None) :]
    steps = [
        {
            one.id: one.log_probability
            for one in (token, *token.alternatives)
            if one.log_probability is not None
        }
        for token in tokens
    ]  # fmt: skip
    return Answer(tuple(token.id for token in tokens), best.score, steps, best.text)
