"""Text to text by CTranslate2: what a user of it puts behind a server.

Triton runs this with a Python of its own, so nothing of the project is imported here.
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
        model: the converted model's directory, the tokenizers with it.
        compute_type: "float32" or "int8".
        workers: batches translated at the same time, each by a call of its own.
        threads: of each of them.
    """

    def __init__(self, model: str, compute_type: str, workers: int, threads: int) -> None:
        self._source = Tokenizer.from_file(f"{model}/{SOURCE_TOKENIZER}")
        self._target = Tokenizer.from_file(f"{model}/{TARGET_TOKENIZER}")
        self._ids = self._target.get_vocab(with_added_tokens=True)
        self._translator = ctranslate2.Translator(
            model, device="cpu", compute_type=compute_type, inter_threads=workers, intra_threads=threads
        )

    def translate(self, texts: Sequence[str], limits: Sequence[int]) -> list[str]:
        """The answer to each text, all in one batch.

        Args:
            limits: most tokens of each answer. Where they differ, one that reached its own leaves the batch, as one
                does that ended by itself.
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
