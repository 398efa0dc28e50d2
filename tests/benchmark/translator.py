"""CTranslate2 in this process, at its best: pre-tokenized sources, no detokenization, no server."""

import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import ctranslate2

from tests.support.load import Sample

END = "</s>"  # the end token of a model that does not name another
LARGEST_BATCH = 32  # of inputs that come all at once


class CTranslate2:
    """A translator of a converted model.

    Args:
        model: Directory of the converted model.
        sources: Tokens of each input, the end token included.
        max_new_tokens: The most tokens to generate.
        compute_type: "float32" or "int8".
        inter_threads: Number of batches translated concurrently.
        intra_threads: Threads per batch.
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
        threads = {"inter_threads": inter_threads, "intra_threads": intra_threads}
        self.translator = ctranslate2.Translator(str(model), device="cpu", compute_type=compute_type, **threads)
        self.workers = inter_threads
        self.sources = [list(source) for source in sources]
        self.max_new_tokens = max_new_tokens
        self._translate(self.sources[: 8 * inter_threads], 8)  # warm-up

    def measure(self, seconds: float, size: int | None, beam: int = 1) -> Sample:
        """Translates for at least `seconds`, in calls of `size` inputs, divided among the workers.

        Args:
            size: Inputs per call; None for all inputs in one call, which CTranslate2 sorts by length.
            beam: Beam size; 1 for greedy search.
        """
        everything = size is None
        size = size or len(self.sources)
        slices = cycle([self.sources[i : i + size] for i in range(0, len(self.sources) - size + 1, size)])
        batch = min(LARGEST_BATCH if everything else size, -(-size // self.workers))
        tokens = sequences = 0
        latencies: list[float] = []
        cpu = time.process_time()
        started = now = time.perf_counter()
        while now - started < seconds:
            results = self._translate(next(slices), batch, beam)
            tokens += sum(len(answer) + (len(answer) < self.max_new_tokens) for answer in results)  # the end token too
            sequences += len(results)
            latencies.append(time.perf_counter() - now)
            now += latencies[-1]
        return Sample(now - started, tokens, sequences, latencies, cpu_seconds={"own": time.process_time() - cpu})

    def whole(self, batch: int, beam: int = 1) -> Sample:
        """Translates all inputs in one call, which sorts them by length.

        Args:
            batch: Inputs that are decoded together, at most.
            beam: Beam size; 1 for greedy search.
        """
        cpu, started = time.process_time(), time.perf_counter()
        results = self._translate(self.sources, batch, beam)
        seconds = time.perf_counter() - started
        tokens = sum(len(answer) + (len(answer) < self.max_new_tokens) for answer in results)
        return Sample(seconds, tokens, len(results), [seconds], cpu_seconds={"own": time.process_time() - cpu})

    def answers(self) -> list[list[str]]:
        """Returns the tokens of every source's greedy answer, without the end token."""
        return self._translate(self.sources, LARGEST_BATCH)

    def _translate(self, sources: list[list[str]], batch: int, beam: int = 1) -> list[list[str]]:
        results = self.translator.translate_batch(
            sources,
            max_batch_size=batch,
            max_decoding_length=self.max_new_tokens,
            min_decoding_length=0,  # by default it forbids the empty answer
            max_input_length=0,
            beam_size=beam,
            return_end_token=beam > 1,  # then it counts for the length, as with us
        )
        answers = [result.hypotheses[0] for result in results]
        return [answer[:-1] if answer[-1:] == [END] else answer for answer in answers]
