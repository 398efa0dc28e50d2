"""Hugging Face's transformers in this process: its own `generate` on batches of tokenized sources."""

import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM

from tests.support.load import Sample


class Generate:
    """A model of transformers, in fp32 on all cores.

    Args:
        directory: Directory of the model.
        sources: Token ids of each input, the end token included.
        max_new_tokens: Tokens to generate.
    """

    def __init__(self, directory: Path, sources: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        self.model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
        self.sources, self.max_new_tokens = sources, max_new_tokens
        self._generate(sources[:2], 1)  # warm-up

    def measure(self, seconds: float, size: int, beam: int = 1) -> Sample:
        """Generates for at least `seconds`, in batches of `size` inputs."""
        slices = cycle([self.sources[i : i + size] for i in range(0, len(self.sources) - size + 1, size)])
        tokens = sequences = 0
        latencies: list[float] = []
        cpu = time.process_time()
        started = now = time.perf_counter()
        while now - started < seconds:
            answers = self._generate(next(slices), beam)
            tokens += sum(map(len, answers))
            sequences += len(answers)
            latencies.append(time.perf_counter() - now)
            now += latencies[-1]
        return Sample(now - started, tokens, sequences, latencies, cpu_seconds={"own": time.process_time() - cpu})

    def answers(self) -> list[list[int]]:
        """Returns the token ids of every source's greedy answer."""
        return self._generate(self.sources, 1)

    def _generate(self, sources: Sequence[Sequence[int]], beam: int) -> list[list[int]]:
        """Returns answers of the same length each, since none ends by itself."""
        longest, pad = max(map(len, sources)), self.model.config.pad_token_id
        ids = torch.tensor([[*source, *[pad] * (longest - len(source))] for source in sources])
        with torch.inference_mode():
            generated = self.model.generate(
                input_ids=ids,
                attention_mask=torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sources]),
                max_new_tokens=self.max_new_tokens,
                num_beams=beam,
                length_penalty=1.0,
                early_stopping=beam > 1,
                do_sample=False,
            )
        answers: list[list[int]] = generated[:, 1:].tolist()
        return answers
