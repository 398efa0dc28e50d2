"""The shipped model in fp32 in three systems: our server, Hugging Face transformers and CTranslate2.

All weights come from the bundle. The server is called through its API, as a batch.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import ctranslate2
import torch
from tokenizers import Tokenizer

from dragoman import Client, Result
from dragoman_export.bundle.weights import load_model
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.core.search_options import SearchOptions
from dragoman_training.data.batches import pad
from dragoman_training.model import Transformer
from tests.reference.decoding import decode
from tests.reference.model import ReferenceModel
from tests.support import ctranslate2_model, transformers_model
from tests.support.bundles import SHIPPED_FP32

ROOT = Path(__file__).resolve().parents[2]
# English words of all kinds, from a text that will not change, for a model that predicts pronunciations.
WORDS = list(dict.fromkeys(re.findall("[a-z]+", (ROOT / "LICENSE").read_text().lower())))[:300]
FEWER_WORDS = WORDS[::5]
MAX_NEW_TOKENS = 16  # few answers are this long, except with a high length penalty, which invents words

TOLERANCE = 1e-4  # of scores
UNDECIDED = 1e-4  # two log-probabilities or scores this close may swap by rounding

NEGLIGIBLE = 1e-30  # a coverage penalty that changes CTranslate2's stopping rule and no score


class Answer(NamedTuple):
    """One hypothesis: its ids without begin and end token, with those of a prefix."""

    ids: list[int]
    score: float


Answers = list[list[Answer]]
"""Hypotheses of each input, best first."""


class Shipped:
    """The shipped model: its bundle, tokenizers, and the model in PyTorch, transformers and CTranslate2."""

    def __init__(self) -> None:
        self.bundle: Bundle = load_bundle(SHIPPED_FP32)
        self.tokens = self.bundle.manifest.tokens
        self.source_tokenizer: Tokenizer = self.bundle.source_tokenizer
        self.target_tokenizer: Tokenizer = self.bundle.target_tokenizer
        self.model: Transformer = load_model(self.bundle)

    @cached_property
    def hugging_face(self) -> Any:
        return transformers_model.convert(self.model, self.tokens)

    def translator(self, folder: Path) -> ctranslate2.Translator:
        """Converts the model to CTranslate2 in `folder`."""
        ctranslate2_model.convert(self.model, self.source_tokenizer, self.target_tokenizer, folder)
        return ctranslate2.Translator(
            str(folder), device="cpu", compute_type="float32", inter_threads=1, intra_threads=1
        )

    def source(self, words: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.source_tokenizer.encode_batch(list(words))]

    def names(self, ids: Sequence[int]) -> list[str]:
        """Returns the names of target tokens."""
        return [self.target_tokenizer.id_to_token(token) or "" for token in ids]

    def ids(self, names: Sequence[str]) -> list[int]:
        ids = [self.target_tokenizer.token_to_id(name) for name in names]
        assert None not in ids
        return cast(list[int], ids)

    def undecided(self, word: str, options: SearchOptions) -> bool:
        """Returns whether some decision of the search is so close that rounding may change it."""
        forward = ReferenceModel(self.model, self.tokens.begin).forward(self.source([word])[0])
        return decode(forward, options, self.tokens.end, self.target_tokenizer.decode).margin < UNDECIDED


def from_server(client: Client, words: Sequence[str], **options: Any) -> Answers:
    """Returns the answers of our server."""
    options = {"max_new_tokens": MAX_NEW_TOKENS, **options}
    answers: Answers = []
    for result in client.generate_batch(words, log_probabilities=True, timeout=120, **options):
        assert isinstance(result, Result), result
        hypotheses = []
        for hypothesis in result.hypotheses:
            assert hypothesis.score is not None
            hypotheses.append(Answer([token.id for token in hypothesis.tokens], hypothesis.score))
        answers.append(hypotheses)
    return answers


@torch.no_grad()
def from_hugging_face(shipped: Shipped, words: Sequence[str], **options: Any) -> Answers:
    """Returns the answers of `generate`.

    Args:
        shipped: The model.
        words: The inputs.
        options: Options of its GenerationConfig, and `prefix`, ids after the begin token of every target. Its greedy
            search (num_beams=1) has no length penalty; here one turns its log-probabilities into a score.
    """
    options = {"num_beams": 1, "max_new_tokens": MAX_NEW_TOKENS, "prefix": [], **options}
    prefix: list[int] = options.pop("prefix")
    length_penalty = options.pop("length_penalty") if options["num_beams"] == 1 else None
    source = pad(shipped.source(words), shipped.tokens.pad)
    made = shipped.hugging_face.generate(
        input_ids=source,
        attention_mask=(source != shipped.tokens.pad).long(),
        decoder_input_ids=torch.tensor([[shipped.tokens.begin, *prefix]] * len(words)),
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    hypotheses = []
    for i, row in enumerate(made.sequences[:, 1:].tolist()):
        ended = shipped.tokens.end in row  # tokens after the end token are padding
        ids = row[: row.index(shipped.tokens.end)] if ended else row
        if length_penalty is None:
            score = made.sequences_scores[i].item()
        else:
            length = len(ids) - len(prefix) + ended
            chosen = made.sequences[i, len(prefix) + 1 :][:length, None]
            steps = torch.stack([step[i] for step in made.scores[:length]])  # [length, vocabulary]
            score = steps.log_softmax(-1).gather(1, chosen).sum().item() / length**length_penalty
        hypotheses.append(Answer(ids, score))
    per_input = options.get("num_return_sequences", 1)
    return [hypotheses[i : i + per_input] for i in range(0, len(hypotheses), per_input)]


def from_ctranslate2(
    shipped: Shipped, translator: ctranslate2.Translator, words: Sequence[str], **options: Any
) -> Answers:
    """Returns the answers of `translate_batch`."""
    options = {"max_decoding_length": MAX_NEW_TOKENS, "min_decoding_length": 0, "max_batch_size": 64, **options}
    results = translator.translate_batch(
        [encoding.tokens for encoding in shipped.source_tokenizer.encode_batch(list(words))],
        max_input_length=0,
        return_scores=True,
        **options,
    )
    return [
        [Answer(shipped.ids(names), score) for names, score in zip(result.hypotheses, result.scores, strict=True)]
        for result in results
    ]


def differing(ours: Answers, theirs: Answers) -> list[int]:
    """Returns the inputs with different ids, or with scores beyond the tolerance."""
    return [i for i, pair in enumerate(zip(ours, theirs, strict=True)) if not _same(*pair)]


def _same(ours: list[Answer], theirs: list[Answer]) -> bool:
    return len(ours) == len(theirs) and all(
        one.ids == other.ids and abs(one.score - other.score) <= TOLERANCE
        for one, other in zip(ours, theirs, strict=True)
    )
