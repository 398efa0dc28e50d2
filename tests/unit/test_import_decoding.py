"""Searches with the settings of an imported model choose the tokens that transformers' `generate` chooses."""

import asyncio
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.models.marian import MarianConfig, MarianMTModel

from dragoman.v1 import generation_pb2 as pb
from dragoman_export.huggingface.generation import generation_part, read_generation
from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.messages.default_options import read_defaults
from dragoman_server.messages.generation_options import ResponseDetails, read_options
from dragoman_server.messages.token_ids import TargetEncoder
from tests.support.scripted_search import Script, run

SOURCES = 10  # 300 pass as well
VOCABULARY, END, UNKNOWN, PAD = 40, 0, 1, 39
LIMIT = 24
BEAM = {"num_beams": 4, "max_length": 12}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"max_length": 12},
    "greedy, shorter than by default": {"max_new_tokens": 4},
    "greedy with penalty": {"max_length": 12, "repetition_penalty": 1.7},
    "greedy with rules": {"max_length": 12, "no_repeat_ngram_size": 2, "bad_words_ids": [[5], [7, 9]], "min_length": 5},
    **{
        f"{beams} beams, penalty {penalty}, early stopping {early}": {
            "num_beams": beams,
            "max_length": 12,
            "length_penalty": penalty,
            "early_stopping": early,
        }
        for beams, penalty, early in [
            (2, 0.0, False),
            (2, 1.0, True),
            (2, 2.0, "never"),
            (4, 0.6, False),
            (4, 1.0, False),
            (4, 1.0, "never"),
            (4, 2.0, False),
            (4, 2.0, True),
            (5, 0.6, True),
            (5, 1.0, False),
            (5, 0.0, "never"),
            (4, -1.0, False),
        ]
    },
    "several answers": BEAM | {"num_return_sequences": 4},
    "forced end": BEAM | {"forced_eos_token_id": END},
    "forced end, few tokens": {"num_beams": 3, "max_length": 5, "forced_eos_token_id": END, "length_penalty": 0.4},
    "forced first": BEAM | {"forced_bos_token_id": 11},
    "forced first and end": BEAM | {"forced_bos_token_id": 11, "forced_eos_token_id": END, "early_stopping": True},
    "forced first, greedy": {"max_length": 12, "forced_bos_token_id": 11},
    "bad words": BEAM | {"bad_words_ids": [[5], [7], [8, 9], [PAD]]},
    "bad words, renormalized": BEAM | {"bad_words_ids": [[5], [7], [8, 9], [PAD]], "renormalize_logits": True},
    "suppressed tokens": BEAM | {"suppress_tokens": [3, 4, 5], "begin_suppress_tokens": [6, 7, 8, END]},
    "no repeated n-grams": BEAM | {"no_repeat_ngram_size": 2},
    "no repeated token": BEAM | {"no_repeat_ngram_size": 1, "early_stopping": True},
    "no n-grams of the source": BEAM | {"encoder_no_repeat_ngram_size": 1},
    "longer n-grams of the source": BEAM | {"encoder_no_repeat_ngram_size": 2, "no_repeat_ngram_size": 3},
    "minimum length": BEAM | {"min_length": 8},
    "minimum new tokens, renormalized": BEAM | {"min_new_tokens": 6, "renormalize_logits": True},
    "penalty in beams": BEAM | {"repetition_penalty": 1.8},
    "penalty in beams, renormalized": BEAM | {"repetition_penalty": 1.8, "renormalize_logits": True},
    "everything": BEAM
    | {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "forced_bos_token_id": 11,
        "forced_eos_token_id": END,
        "bad_words_ids": [[PAD], [4, 5]],
        "min_length": 4,
        "length_penalty": 0.8,
    },
}


class Oracle(MarianMTModel):  # type: ignore[misc]
    """transformers' generation on logits that are drawn for each source and target so far.

    Unlike those of a small random network they differ at every step, so that answers have all lengths.
    """

    source: tuple[int, ...] = ()

    def forward(self, decoder_input_ids: torch.Tensor, encoder_outputs: Any, **_: Any) -> Seq2SeqLMOutput:
        logits = [logits_after(self.source, tuple(row[1:])) for row in decoder_input_ids.tolist()]
        found = torch.tensor(np.array(logits), dtype=torch.float32)[:, None]
        return Seq2SeqLMOutput(logits=found, encoder_last_hidden_state=encoder_outputs[0])


@cache
def logits_after(source: tuple[int, ...], so_far: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns logits [vocabulary], of which that of the end token is often among the best."""
    logits = np.random.default_rng([*source, VOCABULARY, *so_far]).normal(scale=1.7, size=VOCABULARY)
    logits[END] += 2
    return logits.astype(np.float32)


@cache
def library_model() -> Any:
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=1,
        decoder_attention_heads=1,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        max_position_embeddings=LIMIT + 1,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        bos_token_id=None,
    )
    return Oracle(config).eval()


def sources() -> list[list[int]]:
    draw = np.random.default_rng(4)
    return [[*draw.integers(2, PAD, draw.integers(1, 9)).tolist(), END] for _ in range(SOURCES)]


def script(source: list[int]) -> Script:
    return lambda so_far: np.exp(logits_after(tuple(source), so_far).astype(np.float64))


def read_search(folder: Path, settings: dict[str, Any]) -> SearchOptions:
    """Returns what a server with an imported bundle makes of a request without options."""
    model: Any = library_model()
    model.config.save_pretrained(folder)
    generation = type(model.generation_config)(
        pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD, **settings
    )
    generation.save_pretrained(folder)
    part = generation_part(read_generation(folder, model.config), LIMIT, forces_language=False)
    tokens = SpecialTokens(pad=PAD, unknown=UNKNOWN, begin=PAD, end=END)
    manifest: Any = SimpleNamespace(generation=part, tokens=tokens)
    defaults = read_defaults(manifest)
    vocabulary = {f"t{index}": index for index in range(VOCABULARY)}
    target = TargetEncoder(Tokenizer(models.WordLevel(vocabulary, "t1")), tokens, LIMIT)
    target.special = {}
    limits = pb.Limits(beam_size=16, hypotheses=16, suppressed_tokens=100, suppressed_sequences=100)
    options = defaults.complete(pb.GenerationOptions())
    return asyncio.run(read_options(options, ResponseDetails(), target, limits, defaults))


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_those_of_generate(name: str, tmp_path: Path) -> None:
    settings = CASES[name]
    search = read_search(tmp_path, settings)
    decoder = TargetDecoder(Tokenizer(models.WordLevel({f"t{index}": index for index in range(VOCABULARY)}, "t1")))
    tokens = SpecialTokens(pad=PAD, unknown=UNKNOWN, begin=PAD, end=END)
    model: Any = library_model()
    different = []
    for source in sources():
        config = type(model.generation_config)(
            pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD, use_cache=False, **settings
        )
        model.source = tuple(source)
        with torch.inference_mode():
            made = model.generate(torch.tensor([source]), generation_config=config).tolist()
        expected = [without_frame(row) for row in made]
        found = run(make_search(search, tokens, VOCABULARY, decoder, source), script(source)).ids()
        if found != expected:
            different.append((source, found, expected))
    assert not different, f"{len(different)} of {SOURCES} differ, such as {different[0]}"


def without_frame(row: list[int]) -> list[int]:
    """Returns an answer without the begin token, and without the end token and the padding after it."""
    return row[1 : row.index(END)] if END in row else row[1:]


def test_answers_of_all_lengths_are_compared(tmp_path: Path) -> None:
    search = read_search(tmp_path, CASES["greedy"])
    decoder = TargetDecoder(Tokenizer(models.WordLevel({"t1": UNKNOWN}, "t1")))
    tokens = SpecialTokens(pad=PAD, unknown=UNKNOWN, begin=PAD, end=END)
    answers = [run(make_search(search, tokens, VOCABULARY, decoder), script(source)).ids()[0] for source in sources()]
    assert len({len(answer) for answer in answers}) > 3
