"""Generation settings of Hugging Face directories: which file counts, what they mean, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf.json_format import ParseDict
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from dragoman.v1.generation_pb2 import GenerationOptions
from dragoman_export.errors import ExportError
from dragoman_export.huggingface.generation import NEW_TOKENS, GenerationSettings, generation_part, read_generation
from dragoman_export.huggingface.model import read_config

IDS = {"decoder_start_token_id": 9, "eos_token_id": 0, "pad_token_id": 9}
MARIAN = {
    "model_type": "marian",
    "vocab_size": 10,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 1,
    "decoder_attention_heads": 1,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    **IDS,
}


def settings(
    folder: Path, generation: dict[str, Any] | None, ignore: tuple[str, ...] = (), **config: Any
) -> GenerationSettings:
    (folder / "config.json").write_text(json.dumps(MARIAN | config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_generation(folder, read_config(folder), ignore)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, {"max_new_tokens": NEW_TOKENS}),
        ({"max_length": 512, "num_beams": 4, "bad_words_ids": [[9]]}, {"max_new_tokens": 511, "bad_words": ((9,),)}),
        ({"max_length": 512, "forced_eos_token_id": 0}, {"max_new_tokens": 510, "forced_last": 0}),
        ({"max_new_tokens": 30}, {"max_new_tokens": 30}),
        ({"min_length": 5}, {"min_new_tokens": 4}),
        ({"min_new_tokens": 5}, {"min_new_tokens": 5}),
        ({"early_stopping": True, "num_beams": 2}, {"early_stopping": True, "num_beams": 2}),
        ({"early_stopping": "never"}, {"early_stopping": "never"}),
        ({"forced_bos_token_id": 3}, {"forced_first": 3}),
        ({"suppress_tokens": [4, 5]}, {"bad_words": ((4,), (5,))}),
        ({"begin_suppress_tokens": [4]}, {"begin_suppressed": (4,)}),
        ({"renormalize_logits": True}, {"renormalized": True}),
        ({"eos_token_id": [0]}, {"end": 0}),
        ({"no_repeat_ngram_size": 3, "length_penalty": 2}, {"no_repeat_ngram_size": 3, "length_penalty": 2.0}),
        ({"do_sample": True, "temperature": 0.7, "top_k": 50}, {"do_sample": True, "temperature": 0.7, "top_k": 50}),
    ],
)
def test_values_are_read(generation: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    found = settings(tmp_path, IDS | generation)
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.start, found.end) == (9, 0)


def test_only_the_generation_file_counts_where_there_is_one(tmp_path: Path) -> None:
    assert settings(tmp_path, IDS, num_beams=6).num_beams == 1
    (tmp_path / "generation_config.json").unlink()
    assert settings(tmp_path, None, num_beams=6).num_beams == 6


@pytest.mark.parametrize(
    ("generation", "problem"),
    [
        ({"sequence_bias": [[[3], 1.0]]}, "sequence_bias is .*--ignore sequence_bias"),
        ({"num_beam_groups": 2}, "num_beam_groups is 2.*--ignore num_beam_groups"),
        ({"penalty_alpha": 0.6}, "penalty_alpha is 0.6"),
        ({"exponential_decay_length_penalty": [5, 1.1]}, "exponential_decay_length_penalty"),
        ({"eos_token_id": [0, 1]}, r"eos_token_id is \[0, 1\]; expected one token id"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"do_sample": True, "num_beams": 2}, "do_sample with num_beams is not supported"),
        ({"forced_eos_token_id": 3}, "forced_eos_token_id is 3; expected eos_token_id, 0"),
        ({"max_length": 1}, "max_length leaves no token to generate"),
        ({"num_beams": "four"}, "num_beams"),
    ],
)
def test_what_cannot_be_followed_is_named(generation: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=problem):
        settings(tmp_path, IDS | generation)


def test_a_key_can_be_ignored(tmp_path: Path) -> None:
    assert settings(tmp_path, IDS | {"sequence_bias": [[[3], 1.0]]}, ("sequence_bias",)).num_beams == 1


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    settings(tmp_path, IDS)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ExportError, match=r"generation_config\.json: expected a JSON object"):
        read_generation(tmp_path, read_config(tmp_path))


@pytest.mark.parametrize("limits", [{"max_length": 6}, {"max_new_tokens": 4}, {"max_length": 6, "forced_eos": 0}, {}])
def test_lengths_are_those_of_generate(limits: dict[str, int], tmp_path: Path) -> None:
    """A model that would never end by itself writes as many tokens as the settings say."""
    given = {key.replace("forced_eos", "forced_eos_token_id"): value for key, value in limits.items()}
    model = MarianMTModel(MarianConfig(**{key: value for key, value in MARIAN.items() if key != "model_type"}))
    model.final_logits_bias[0, 0] = -1e6
    model.generation_config = GenerationConfig(**IDS, **given)
    written = model.generate(torch.tensor([[3, 0]]))[0].tolist()[1:]
    expected = settings(tmp_path, IDS | given)
    tokens = written[:-1] if expected.forced_last is not None else written
    assert len(tokens) == expected.max_new_tokens
    assert 0 not in tokens


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"max_length": 60}, {"max_new_tokens": 39}),  # the model's limit
        ({"max_length": 30, "min_length": 9}, {"max_new_tokens": 29, "min_new_tokens": 8}),
        (
            {"max_length": 30, "num_beams": 4, "length_penalty": 0.6},
            {"max_new_tokens": 29, "beam_size": 4, "length_penalty": 0.6, "stopping": "STOPPING_CURRENT_LENGTH"},
        ),
        (
            {"max_new_tokens": 9, "num_beams": 2, "early_stopping": "never", "num_return_sequences": 2},
            {
                "max_new_tokens": 9,
                "num_hypotheses": 2,
                "beam_size": 2,
                "length_penalty": 1,
                "stopping": "STOPPING_MAX_LENGTH",
            },
        ),
        (
            {"max_new_tokens": 9, "do_sample": True, "temperature": 0.7, "top_p": 0.9},
            {"max_new_tokens": 9, "sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.9},
        ),
        ({"max_new_tokens": 9, "do_sample": True, "top_k": 0}, {"max_new_tokens": 9, "sample": True, "temperature": 1}),
        (
            {"max_new_tokens": 9, "bad_words_ids": [[9], [0], [3, 4]], "no_repeat_ngram_size": 3},
            {
                "max_new_tokens": 9,
                "suppressed_tokens": [9],
                "suppressed_sequences": [{"token_ids": {"ids": [3, 4]}}],
                "no_repeat_ngram_size": 3,
            },
        ),
    ],
)
def test_settings_become_options_of_our_api(
    generation: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    part = generation_part(settings(tmp_path, IDS | generation), 39, forces_language=False)
    assert part.options == expected
    ParseDict(part.options, GenerationOptions())


def test_forced_tokens_are_not_counted(tmp_path: Path) -> None:
    found = settings(tmp_path, IDS | {"max_length": 30, "min_length": 9, "forced_bos_token_id": 3})
    part = generation_part(found, 99, forces_language=False)
    assert (part.forced_first, part.options) == (3, {"max_new_tokens": 28, "min_new_tokens": 7})
    part = generation_part(found, 99, forces_language=True)
    assert (part.forced_first, part.options) == (None, {"max_new_tokens": 28, "min_new_tokens": 7})
    assert (part.renormalized, part.whole_history, part.forces_end) == (False, True, False)
    found = settings(tmp_path, IDS | {"max_length": 30, "forced_eos_token_id": 0, "renormalize_logits": True})
    part = generation_part(found, 99, forces_language=False)
    assert (part.options, part.renormalized, part.forces_end) == ({"max_new_tokens": 28}, True, True)
