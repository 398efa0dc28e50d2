"""CTranslate2's conversion of the same directories: a second opinion on the families that it has."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter

from tests.parity.models import Question
from tests.parity.settings import LONGEST, Setting

# Its converter reads one vocabulary of a Marian model, and no languages of M2M-100 with transformers 5.
KNOWN = ("marian", "bart", "mbart", "mbart50", "nllb", "pegasus", "t5", "t5-bytes", "byt5", "madlad", "mt5")


class _Converter(TransformersConverter):  # type: ignore[misc]
    """Reads whether T5 scales logits where transformers 5 has it; its `tie_word_embeddings` is always true."""

    def load_model(self, *arguments: Any, **options: Any) -> Any:
        model = super().load_model(*arguments, **options)
        if "t5" in model.config.model_type:
            model.config.tie_word_embeddings = getattr(model.config, "scale_decoder_outputs", False)
        return model


class Translator:
    """A directory in CTranslate2, in fp32.

    Args:
        directory: The Hugging Face directory.
        scratch: Folder to convert it to; it must not exist.
    """

    def __init__(self, directory: Path, scratch: Path) -> None:
        _Converter(str(directory)).convert(str(scratch))
        written = scratch / "config.json"
        known = {key: value for key, value in json.loads(written.read_text()).items() if value is not None}
        written.write_text(json.dumps({"bos_token": known["eos_token"], **known}))  # null as a token is refused
        self._translator: Any = ctranslate2.Translator(
            str(scratch), device="cpu", compute_type="float32", inter_threads=1, intra_threads=1
        )
        self._source, self._target = (_tokens(scratch, side) for side in ("source", "target"))
        self._ids = {token: index for index, token in enumerate(self._target)}
        config = json.loads((directory / "config.json").read_text())
        self._start: list[str] = []
        if config["model_type"] == "mbart" and "tokenizer_class" not in config:
            # Of a model for one pair of languages; the converter leaves it to the caller.
            self._start = [self._target[config["decoder_start_token_id"]]]

    def answer(self, question: Question, setting: Setting) -> tuple[int, ...]:
        """Returns the ids of an answer after a forced first token, without the end token."""
        forced = [] if question.forced is None else [self._target[question.forced]]
        [result] = self._translator.translate_batch(
            [[self._source[token] for token in question.ids]],
            target_prefix=[[*self._start, *forced]],
            beam_size=setting.beams,
            max_input_length=0,
            max_decoding_length=LONGEST + len(forced),
            min_decoding_length=0,
        )
        names: list[str] = result.hypotheses[0]
        return tuple(self._ids[name] for name in names[len(forced) :])


def _tokens(folder: Path, side: str) -> Sequence[str]:
    file = folder / f"{side}_vocabulary.json"
    shared = folder / "shared_vocabulary.json"
    tokens: list[str] = json.loads((file if file.exists() else shared).read_text(encoding="utf-8"))
    return tokens
