"""Models converted for CTranslate2, held against CTranslate2's own answers."""

import json
import warnings
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from transformers import AutoTokenizer
from transformers.models.auto import AutoConfig, AutoModelForSeq2SeqLM

from dragoman_export.ctranslate2.model import Converted, read_converted
from dragoman_export.errors import ExportError
from tests.support.huggingface_directories import write_directory

torch.set_num_threads(1)

LENGTH = 12  # tokens of an answer
ROUNDING = 0.01  # of their log-probabilities together
BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 40,
    "init_std": 0.4,
}
T5: dict[str, Any] = {"d_model": 16, "d_kv": 6, "num_heads": 3, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "initializer_factor": 4.0}
# The converter asks BART's configurations for keys that transformers 5 no longer has.
POST, PRE = ({"normalize_before": before, "normalize_embedding": True} for before in (False, True))
FAMILIES: dict[str, dict[str, Any]] = {
    "marian": BART | {"activation_function": "swish", "scale_embedding": True},
    "bart": BART | POST,
    "mbart": BART | PRE,
    "pegasus": BART | PRE | {"normalize_embedding": False, "scale_embedding": True},
    "t5": T5,
    "mt5": T5,
}


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(request.param, tmp_path_factory.mktemp(request.param))


@torch.no_grad()
def converted(family: str, folder: Path, quantization: str | None = None) -> Path:
    """A random model of a family as CTranslate2 has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(write_directory(folder, family))
        size = max(tokenizer.get_vocab().values()) + 1
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "vocab_size": size}
        ids |= {"decoder_start_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id}
        torch.manual_seed(1)
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(family, **FAMILIES[family], **ids))
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
        source, target = folder / "huggingface", folder / "ctranslate2"
        model.save_pretrained(source)
        tokenizer.save_pretrained(source)
        ctranslate2.converters.TransformersConverter(str(source)).convert(str(target), quantization=quantization)
    return target


@torch.no_grad()
def greedy(read: Converted, source: list[int], start: int) -> tuple[list[int], float]:
    """The most probable token every time, and the sum of log-probabilities."""
    ids, score = [start], 0.0
    for _ in range(LENGTH):
        logits = read.model(torch.tensor([source]), torch.tensor([ids]))[0, -1]
        best, token = logits.log_softmax(-1).max(-1)
        score += float(best)
        if token == read.end:
            return ids[1:], score
        ids.append(int(token))
    return ids[1:], score


def test_answers_are_those_of_ctranslate2(directory: Path) -> None:
    read = read_converted(directory)
    translator = ctranslate2.Translator(str(directory), compute_type="float32", intra_threads=1)
    generator = torch.Generator().manual_seed(2)
    several, ties = set(), 0
    for _ in range(20):
        length = int(torch.randint(2, 12, (1,), generator=generator))
        source = torch.randint(4, len(read.source) - 1, (length,), generator=generator).tolist()
        # mBART starts with the target language, which every request includes; any token will do here.
        prefix = [[read.target[5]]] if "mbart" in str(directory) else None
        [theirs] = translator.translate_batch(
            [[read.source[index] for index in source]],
            target_prefix=prefix,
            beam_size=1,
            max_decoding_length=LENGTH,
            return_scores=True,
            length_penalty=0,
        )
        ours, score = greedy(read, source, 5 if prefix else read.start)
        tokens = theirs.hypotheses[0]
        # CTranslate2 approximates exponentials, so scores differ in the fourth digit, and ties may fall otherwise.
        assert score == pytest.approx(theirs.scores[0], abs=ROUNDING)
        ties += [read.target[index] for index in ours] != tokens
        several.add(tuple(ours))
    assert ties <= 2
    assert len(several) > 3


def test_integers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"holds integers.*convert with float32 or float16"):
        read_converted(converted("marian", tmp_path, "int8"))


def test_half_precision_is_read(tmp_path: Path) -> None:
    read = read_converted(converted("marian", tmp_path, "float16"))
    assert {parameter.dtype for parameter in read.model.parameters()} == {torch.float32}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted("marian", tmp_path_factory.mktemp("good"))


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("model.bin", None, r"model\.bin: No such file"),
        ("model.bin", lambda content: content[:1000], r"model\.bin: damaged, or not a model"),
        ("model.bin", lambda _: b"\x63\x00\x00\x00", r"model\.bin: binary version 99; expected 4 to 6"),
        (
            "model.bin",
            lambda content: content.replace(b"decoder/num_heads", b"decoder/num_headz"),
            "num_heads is missing",
        ),
        ("config.json", None, r"config\.json is missing"),
        ("config.json", lambda _: b"{", r"config\.json: cannot be read as JSON"),
        (
            "config.json",
            lambda _: json.dumps({"eos_token": "x"}).encode(),
            "eos_token is 'x', which is not in",
        ),
        ("shared_vocabulary.json", lambda _: b'["</s>", "<unk>"]', r"has \d+ rows, but the vocabulary has 3 tokens"),
        ("shared_vocabulary.json", lambda _: b'{"a": 1}', "expected a list of tokens"),
    ],
)
def test_damaged_directories_are_named(file: str, change: Any, problem: str, good: Path, tmp_path: Path) -> None:
    for path in good.iterdir():
        content = path.read_bytes()
        if path.name != file:
            (tmp_path / path.name).write_bytes(content)
        elif change is not None:
            (tmp_path / path.name).write_bytes(change(content))
    with pytest.raises(ExportError, match=problem):
        read_converted(tmp_path)
