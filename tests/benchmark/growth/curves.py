"""The curves: what grows in each, and what stays the same."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from server.bundle.load import Bundle
from server.cpu import usable_cpus
from server.engine.layout import EngineOptions, layout
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
        self.threads = layout(EngineOptions(cores=usable_cpus()), CPU, bundle.manifest.shape.parameters)[1]
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
        yield Curve("rows-step", "a decode step", "rows", "tokens", setting, sample(tasks, self.effort))
        encoding = [Task(rows, rows * self.source, partial(model.encode, rows, self.source)) for rows in ROWS]
        yield Curve("rows-encoder", "encoding", "rows", "source tokens", setting, sample(encoding, self.effort))

    def source_length(self) -> Iterator[Curve]:
        """The encoder and a step over the length of sources."""
        model = self._open(with_long_texts(self.bundle, self.folder), TYPICAL_ROWS)
        setting = f"{TYPICAL_ROWS} rows, the same shape for longer texts, random weights, {self._threads()}"
        encoding = [Task(n, TYPICAL_ROWS * n, partial(model.encode, TYPICAL_ROWS, n)) for n in LENGTHS]
        points = sample(encoding, self.effort)
        yield Curve("source-encoder", "encoding", "source tokens", "source tokens", setting, points)
        tasks = [
            Task(n, TYPICAL_ROWS, partial(model.step, TYPICAL_ROWS), partial(model.encode, TYPICAL_ROWS, n))
            for n in LENGTHS
        ]
        yield Curve("source-step", "a decode step", "source tokens", "tokens", setting, sample(tasks, self.effort))

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
        yield Curve("target-step", "a decode step", "target tokens", "tokens", setting, sample(tasks, self.effort))
        answers = [Task(n, TYPICAL_ROWS * n, partial(model.answer, TYPICAL_ROWS, self.source, n)) for n in LENGTHS[:-1]]
        points = sample(answers, Effort(1, 0.0))
        yield Curve("target-answer", "an answer", "target tokens", "tokens", setting, points)

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
        yield Curve("beam", "a batch of answers", "hypotheses", "tokens of answers", setting, points)

    def vocabulary(self) -> Iterator[Curve]:
        """A step over the target's vocabulary."""
        tasks = []
        for vocabulary in VOCABULARIES:
            model = self._open(with_vocabulary(self.bundle, vocabulary, self.folder), TYPICAL_ROWS)
            model.encode(TYPICAL_ROWS, self.source)
            tasks.append(Task(vocabulary, TYPICAL_ROWS, partial(model.step, TYPICAL_ROWS)))
        setting = f"{TYPICAL_ROWS} rows, the same decoder, random weights, {self._threads()}"
        yield Curve(
            "vocabulary", "a decode step", "tokens of vocabulary", "tokens", setting, sample(tasks, self.effort)
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
        yield Curve("engines", "a batch of answers", "engines", "tokens", setting, points, spread=True)

    def _open(self, bundle: Bundle, slots: int) -> Model:
        return Model(Runtime(Sessions(bundle, CPU, self.threads), slots))

    def _threads(self) -> str:
        return f"one engine with {self.threads} thread{'s' if self.threads > 1 else ''}"
