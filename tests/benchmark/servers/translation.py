"""Translation of texts by CTranslate2, as its users would put it behind a server.

Triton runs this with its own Python, so this module imports nothing of the project.
"""

from collections.abc import Sequence
from typing import Any

import ctranslate2
from tokenizers import Tokenizer

END = "</s>"
SOURCE_TOKENIZER, TARGET_TOKENIZER = "source_tokenizer.json", "target_tokenizer.json"


class TextTranslator:
    """Greedy search over whole batches.

    Args:
        model: Directory of the converted model with its tokenizers.
        compute_type: "float32" or "int8".
        workers: Number of batches translated concurrently, each by a call of its own.
        threads: Threads per worker.
    """

    def __init__(self, model: str, compute_type: str, workers: int, threads: int) -> None:
        self._source = Tokenizer.from_file(f"{model}/{SOURCE_TOKENIZER}")
        self._target = Tokenizer.from_file(f"{model}/{TARGET_TOKENIZER}")
        self._ids = self._target.get_vocab(with_added_tokens=True)
        self._translator = ctranslate2.Translator(
            model, device="cpu", compute_type=compute_type, inter_threads=workers, intra_threads=threads
        )

    def translate(self, texts: Sequence[str], limits: Sequence[int]) -> list[str]:
        """Returns the answer to each text, from one batch.

        Args:
            limits: The most tokens of each answer. If they differ, an answer that reaches its limit leaves the batch,
                as one that has ended does.
        """
        options: dict[str, Any] = {}
        if min(limits) < max(limits):
            options["callback"] = lambda result: result.step + 1 >= limits[result.batch_id]
        results = self._translator.translate_batch(
            [encoding.tokens for encoding in self._source.encode_batch(list(texts))],
            beam_size=1,
            max_input_length=0,
            max_decoding_length=max(limits),
            min_decoding_length=0,  # by default it forbids the empty answer
            **options,
        )
        ids = [[self._ids[token] for token in result.hypotheses[0] if token != END] for result in results]
        answers: list[str] = self._target.decode_batch(ids)
        return answers
