"""The curves: what grows in each, and what stays the same."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from server.bundle.load import Bundle
from server.cpu import usable_cpus
from server.engine.layout import EngineOptions, layout, weights_of
from server.runtime.device import CPU
from server.runtime.model import Runtime, Sessions
from tests.benchmark.beam import Beam
from tests.benchmark.engine_loop import EngineLoop
from tests.benchmark.growth.curve import Curve
from tests.benchmark.growth.measure import Effort, Model, Task, sample
from tests.benchmark.growth.models import LONGEST, with_long_texts, with_vocabulary
from tests.benchmark.raw_loop import RawLoop

ROWS = tuple(2**power for power in range(9))  # 1 to 256
LENGTHS = tuple(LONGEST >> power for power in range(5, -1, -1))  # 8 to 256
BEAMS = (1, 2, 4, 8, 16)
VOCABULARIES = (1_000, 4_000, 16_000, 64_000)
TYPICAL_ROWS = 8
SOURCE, POSITION = 16, 16  # tokens of each source, and of each target so far, where neither grows
ONE_BATCH = 1e-9  # seconds: what is begun in them is finished
ENGINE_ROWS = 64  # in all engines together
WHY = {
    "rows-step": (
        "A step reads every weight once however many rows there are, so that a few rows cost little more than one; "
        "where arithmetic takes longer than reading, every row costs the same."
    ),
    "rows-encoder": (
        "Every source token costs the same, beside what is done once a batch; more than linear it becomes where a "
        "batch no longer fits the processor's caches."
    ),
    "source-encoder": (
        "The products are linear in tokens; attention compares each with every other one, and its square weighs the "
        "more the longer the source is beside the model's width."
    ),
    "source-step": (
        "Of a step only the attention to the source reads it, linearly; all else stays the same, so that a step grows "
        "less than the source does."
    ),
    "target-step": (
        "Of a step only the attention to the tokens before it grows, linearly; all else stays the same, so that a "
        "step grows less than the target does."
    ),
    "target-answer": (
        "An answer has as many steps as tokens, and each takes as long as the one before it, or longer: a little more "
        "than linear is to be expected."
    ),
    "beam": (
        "Each hypothesis is a row; to what a step of more rows costs come the rows that are copied where hypotheses "
        "branch, and the choice among more candidates."
    ),
    "vocabulary": (
        "The output layer, the log-softmax and the choice of the best tokens are linear in the vocabulary; the layers "
        "below do not know it."
    ),
    "engines": (
        "Engines of one thread each compute side by side as long as there are cores for them; more of them share "
        "cores, and all share the memory's bandwidth."
    ),
}
"""What is to be expected of each curve."""


class Curves:
    """All curves of a model.

    Args:
        bundle: the model.
        folder: where random models stand.
    """

    def __init__(self, bundle: Bundle, folder: Path, effort: Effort) -> None:
        self.bundle = bundle
        self.folder = folder
        self.effort = effort
        limits = bundle.manifest.limits
        self.source = min(SOURCE, limits.max_source_tokens)
        self.tokens = min(2 * POSITION, limits.max_target_tokens)
        self.threads = layout(EngineOptions(cores=usable_cpus()), CPU, weights_of(bundle.manifest))[1]
        self.all: dict[str, Callable[[], Iterator[Curve]]] = {
            "rows": self.rows,
            "source": self.source_length,
            "target": self.target_length,
            "beam": self.beam,
            "vocabulary": self.vocabulary,
            "engines": self.engines,
        }

    def prepare(self, name: str) -> None:
        """Exports the random models that a curve needs, which is not timed and takes minutes."""
        if name in ("source", "target"):
            with_long_texts(self.bundle, self.folder)
        if name == "vocabulary":
            for vocabulary in VOCABULARIES:
                with_vocabulary(self.bundle, vocabulary, self.folder)

    def rows(self) -> Iterator[Curve]:
        """A step and the encoder over rows."""
        model = self._open(self.bundle, max(ROWS))
        tasks = []
        for rows in ROWS:

            def prepare(rows: int = rows) -> None:
                model.encode(rows, self.source)
                model.stand(rows, min(POSITION, self.tokens - 1))

            tasks.append(Task(rows, rows, partial(model.step, rows), prepare))
        setting = f"{self.source} source tokens, {self._threads()}"
        yield Curve(
            "rows-step", "a decode step", "rows", "tokens", setting, sample(tasks, self.effort), WHY["rows-step"]
        )
        encoding = [Task(rows, rows * self.source, partial(model.encode, rows, self.source)) for rows in ROWS]
        yield Curve(
            "rows-encoder",
            "encoding",
            "rows",
            "source tokens",
            setting,
            sample(encoding, self.effort),
            WHY["rows-encoder"],
        )

    def source_length(self) -> Iterator[Curve]:
        """The encoder and a step over the length of sources."""
        model = self._open(with_long_texts(self.bundle, self.folder), TYPICAL_ROWS)
        setting = f"{TYPICAL_ROWS} rows, the same shape for longer texts, random weights, {self._threads()}"
        encoding = [Task(n, TYPICAL_ROWS * n, partial(model.encode, TYPICAL_ROWS, n)) for n in LENGTHS]
        points = sample(encoding, self.effort)
        yield Curve(
            "source-encoder", "encoding", "source tokens", "source tokens", setting, points, WHY["source-encoder"]
        )
        tasks = [
            Task(n, TYPICAL_ROWS, partial(model.step, TYPICAL_ROWS), partial(model.encode, TYPICAL_ROWS, n))
            for n in LENGTHS
        ]
        yield Curve(
            "source-step",
            "a decode step",
            "source tokens",
            "tokens",
            setting,
            sample(tasks, self.effort),
            WHY["source-step"],
        )

    def target_length(self) -> Iterator[Curve]:
        """A step over the tokens before it, and whole answers over their length."""
        model = self._open(with_long_texts(self.bundle, self.folder), TYPICAL_ROWS)
        model.encode(TYPICAL_ROWS, self.source)
        setting = f"{TYPICAL_ROWS} rows, {self.source} source tokens, the same shape for longer texts, random weights, "
        setting += self._threads()
        tasks = [
            Task(n, TYPICAL_ROWS, partial(model.step, TYPICAL_ROWS), partial(model.stand, TYPICAL_ROWS, n - 1))
            for n in LENGTHS
        ]
        yield Curve(
            "target-step",
            "a decode step",
            "target tokens",
            "tokens",
            setting,
            sample(tasks, self.effort),
            WHY["target-step"],
        )
        answers = [Task(n, TYPICAL_ROWS * n, partial(model.answer, TYPICAL_ROWS, self.source, n)) for n in LENGTHS[:-1]]
        points = sample(answers, Effort(1, 0.0))
        yield Curve("target-answer", "an answer", "target tokens", "tokens", setting, points, WHY["target-answer"])

    def beam(self) -> Iterator[Curve]:
        """Answers by beam search over the size of the beam, by the server's engines."""
        sources = Model(Runtime(Sessions(self.bundle, CPU, 1), TYPICAL_ROWS)).sources
        sources = [[*ids[: self.source - 1], self.bundle.manifest.tokens.end] for ids in sources]
        searches = {str(size): [Beam(size, early_stopping=False).search(self.tokens)] for size in BEAMS}
        loop = EngineLoop(self.bundle.path, sources, searches, TYPICAL_ROWS * max(BEAMS), usable_cpus())
        with closing(loop):
            counts = {size: loop.measure(ONE_BATCH, str(size), TYPICAL_ROWS).tokens for size in BEAMS}
            tasks = [
                Task(size, counts[size], partial(loop.measure, ONE_BATCH, str(size), TYPICAL_ROWS)) for size in BEAMS
            ]
            points = sample(tasks, self.effort)
        setting = f"{TYPICAL_ROWS} inputs of {self.source} tokens at a time, at most {self.tokens} tokens an answer, "
        setting += f"engines of the server: {loop.setting()}"
        yield Curve("beam", "a batch of answers", "hypotheses", "tokens of answers", setting, points, WHY["beam"])

    def vocabulary(self) -> Iterator[Curve]:
        """A step over the target's vocabulary."""
        tasks = []
        for vocabulary in VOCABULARIES:
            model = self._open(with_vocabulary(self.bundle, vocabulary, self.folder), TYPICAL_ROWS)
            model.encode(TYPICAL_ROWS, self.source)
            tasks.append(Task(vocabulary, TYPICAL_ROWS, partial(model.step, TYPICAL_ROWS)))
        setting = f"{TYPICAL_ROWS} rows, the same decoder, random weights, {self._threads()}"
        yield Curve(
            "vocabulary",
            "a decode step",
            "tokens of vocabulary",
            "tokens",
            setting,
            sample(tasks, self.effort),
            WHY["vocabulary"],
        )

    def engines(self) -> Iterator[Curve]:
        """Encoding and decoding by several engines of one thread each."""
        sources = Model(Runtime(Sessions(self.bundle, CPU, 1), ENGINE_ROWS)).sources
        sources = [ids[: self.source] for ids in sources]
        tasks = []
        for count in sorted({1, 2, usable_cpus(), 2 * usable_cpus()}):
            loop = RawLoop(self.bundle.path, sources, count, 1, ENGINE_ROWS, self.tokens)
            work = partial(loop.measure, 0, ENGINE_ROWS, self.tokens)
            tasks.append(Task(count, ENGINE_ROWS * self.tokens, work))
        setting = f"{ENGINE_ROWS} rows in all, {self.source} source and {self.tokens} target tokens, 1 thread each"
        points = sample(tasks, self.effort)
        yield Curve("engines", "a batch of answers", "engines", "tokens", setting, points, WHY["engines"], spread=True)

    def _open(self, bundle: Bundle, slots: int) -> Model:
        return Model(Runtime(Sessions(bundle, CPU, self.threads), slots))

    def _threads(self) -> str:
        return f"one engine with {self.threads} thread{'s' if self.threads > 1 else ''}"
