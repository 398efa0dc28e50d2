"""CTranslate2 in this process, at its best: sources tokenized beforehand, text not joined, nobody to serve."""

import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import ctranslate2

from tests.benchmark.beam import Beam
from tests.benchmark.samples import Sample

END = "</s>"  # the end token of a model that does not tell another


class CTranslate2:
    """A translator over a converted model.

    Args:
        model: the converted model's directory.
        sources: tokens of each input, the end token included.
        max_new_tokens: generated at most.
        compute_type: "float32" or "int8".
        inter_threads: batches translated at the same time.
        intra_threads: threads in each of them.
    """

    def __init__(
        self,
        model: Path,
        sources: Sequence[Sequence[str]],
        max_new_tokens: int,
        compute_type: str,
        inter_threads: int,
        intra_threads: int,
    ) -> None:
        self.translator = ctranslate2.Translator(
            str(model),
            device="cpu",
            compute_type=compute_type,
            inter_threads=inter_threads,
            intra_threads=intra_threads,
        )
        self.workers = inter_threads
        self.sources = [list(source) for source in sources]
        self.max_new_tokens = max_new_tokens
        self._translate(self.sources[: 8 * inter_threads], 8)  # warm-up

    def measure(self, seconds: float, size: int | None, batch: int, beam: Beam | None = None) -> Sample:
        """Translates for at least `seconds`, `size` inputs at a call.

        Args:
            size: None for all inputs in one call, which CTranslate2 then sorts by length.
            batch: inputs in one of its batches at most; it is lowered where a call would not give every worker one.
            beam: greedy without.
        """
        size = size or len(self.sources)
        slices = cycle([self.sources[i : i + size] for i in range(0, len(self.sources) - size + 1, size)])
        batch = min(batch, -(-size // self.workers))
        tokens = sequences = 0
        latencies: list[float] = []
        cpu = time.process_time()
        started = now = time.perf_counter()
        while now - started < seconds:
            results = self._translate(next(slices), batch, beam)
            tokens += sum(map(self._count, results))
            sequences += len(results)
            latencies.append(time.perf_counter() - now)
            now += latencies[-1]
        return Sample(now - started, tokens, sequences, latencies, cpu_seconds={"own": time.process_time() - cpu})

    def answers(self, beam: Beam | None = None) -> list[list[str]]:
        """Tokens of every source's best hypothesis, without the end token."""
        return self._translate(self.sources, 32, beam)

    def _translate(self, sources: list[list[str]], batch: int, beam: Beam | None = None) -> list[list[str]]:
        results = self.translator.translate_batch(
            sources,
            max_batch_size=batch,
            max_decoding_length=self.max_new_tokens,
            min_decoding_length=0,  # by default it forbids the empty answer
            max_input_length=0,
            **(beam.arguments() if beam else {"beam_size": 1}),
        )
        answers = [result.hypotheses[0] for result in results]
        return [answer[:-1] if answer[-1:] == [END] else answer for answer in answers]

    def _count(self, answer: list[str]) -> int:
        """Tokens, the end token included where the model produced it."""
        return len(answer) + (len(answer) < self.max_new_tokens)
