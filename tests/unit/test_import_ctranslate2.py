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

from dragoman_export.bundle.options import ImportOptions
from dragoman_export.errors import ExportError
from dragoman_export.imports import read_import
from dragoman_export.original import Original
from dragoman_training.model import Transformer
from tests.support.huggingface_directories import MODEL_TYPES, write_directory

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
    "nllb": BART | {"scale_embedding": True},
    "t5": T5,
    "mt5": T5,
}
LANGUAGES = {"mbart": "de_DE", "nllb": "deu_Latn"}


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(request.param, tmp_path_factory.mktemp(request.param))


@torch.no_grad()
def converted(family: str, folder: Path, quantization: str | None = None) -> Path:
    """A random model of a family as CTranslate2's converter writes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(write_directory(folder, family))
        size = max(tokenizer.get_vocab().values()) + 1
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "vocab_size": size}
        ids |= {"decoder_start_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id}
        if family == "mbart":
            ids["decoder_start_token_id"] = tokenizer.convert_tokens_to_ids(LANGUAGES[family])
        torch.manual_seed(1)
        model = AutoModelForSeq2SeqLM.from_config(
            AutoConfig.for_model(MODEL_TYPES.get(family, family), **FAMILIES[family], **ids)
        )
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
        source, target = folder / "huggingface", folder / "ctranslate2"
        model.save_pretrained(source)
        tokenizer.save_pretrained(source)
        ctranslate2.converters.TransformersConverter(str(source)).convert(str(target), quantization=quantization)
    return target


def read(directory: Path, **options: Any) -> Original:
    """The model as imported, with the tokenizer that it was converted with."""
    tokenizer = options.pop("tokenizer", directory.parent / "huggingface")
    return read_import(ImportOptions("ctranslate2", str(directory), [tokenizer], **options), lambda _: None)


def tokens_of(directory: Path) -> list[str]:
    tokens: list[str] = json.loads((directory / "shared_vocabulary.json").read_text())
    return tokens


@torch.no_grad()
def greedy(model: Transformer, source: list[int], begin: list[int], end: int) -> tuple[list[int], float]:
    """Returns the most probable token of every step, and the sum of their log-probabilities."""
    ids, score = begin, 0.0
    for _ in range(LENGTH):
        logits = model(torch.tensor([source]), torch.tensor([ids]))[0, -1]
        best, token = logits.log_softmax(-1).max(-1)
        score += float(best)
        if token == end:
            return ids[len(begin) :], score
        ids = [*ids, int(token)]
    return ids[len(begin) :], score


def test_answers_are_those_of_ctranslate2(directory: Path) -> None:
    original = read(directory)
    assert original.text is not None
    tokens, begin, prefix = tokens_of(directory), [original.tokens.begin], None
    for layout, code in LANGUAGES.items():
        if layout in directory.parent.name:
            language = original.text.languages[code].target
            assert language is not None
            # It follows the first decoder input, but for mBART, of which it is the first input itself.
            begin = [*begin, language] if original.text.forces_language else [language]
            assert begin[0] == original.tokens.begin
            prefix = [[tokens[language]]]
    translator = ctranslate2.Translator(str(directory), compute_type="float32", intra_threads=1)
    generator = torch.Generator().manual_seed(2)
    several, ties = set(), 0
    for _ in range(20):
        length = int(torch.randint(2, 12, (1,), generator=generator))
        source = torch.randint(4, 900, (length,), generator=generator).tolist()
        [theirs] = translator.translate_batch(
            [[tokens[index] for index in source]],
            target_prefix=prefix,
            beam_size=1,
            max_decoding_length=LENGTH + len(begin) - 1,
            return_scores=True,
            length_penalty=0,
        )
        ours, score = greedy(original.model, source, begin, original.tokens.end)
        answer = theirs.hypotheses[0][len(begin) - 1 :]
        # CTranslate2 approximates exponentials, so scores differ in the fourth digit, and ties may fall otherwise.
        assert score == pytest.approx(theirs.scores[0], abs=ROUNDING)
        ties += [tokens[index] for index in ours] != answer
        several.add(tuple(ours))
    assert ties <= 2
    assert len(several) > 3


def test_integers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"holds integers.*convert with float32 or float16"):
        read(converted("marian", tmp_path, "int8"))


def test_half_precision_is_read(tmp_path: Path) -> None:
    original = read(converted("marian", tmp_path, "float16"))
    assert {parameter.dtype for parameter in original.model.parameters()} == {torch.float32}


def test_settings_are_those_beside_the_tokenizer_or_of_ctranslate2(tmp_path: Path) -> None:
    directory, tokenizer = converted("mbart", tmp_path), tmp_path / "huggingface"
    settings = tokenizer / "generation_config.json"
    values = json.loads(settings.read_text())
    settings.write_text(json.dumps(values | {"num_beams": 3, "max_length": 9}))
    original = read(directory)
    assert original.generation is not None
    assert (original.generation.options["beam_size"], original.generation.options["max_new_tokens"]) == (3, 7)
    settings.write_text(json.dumps(values | {"guidance_scale": 2}))
    with pytest.raises(ExportError, match="--ignore guidance_scale imports the model without it"):
        read(directory)
    read(directory, ignore=["guidance_scale"])
    settings.write_text(json.dumps(values | {"eos_token_id": 7, "forced_eos_token_id": None}))
    with pytest.raises(ExportError, match="eos_token_id is 7; the model's is 2"):
        read(directory)
    settings.unlink()
    original = read(directory)  # the first decoder input is the tokenizer's target language
    assert original.text is not None
    assert (original.text.target_language, original.text.forces_language) == ("de_DE", False)
    assert original.generation is not None
    assert original.generation.options == {
        "beam_size": 2,
        "length_penalty": 1.0,
        "stopping": "STOPPING_EARLY",
        "max_new_tokens": 39,
        "min_new_tokens": 1,
    }
    keys = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(keys | {"tgt_lang": None}))
    with pytest.raises(ExportError, match="the model starts with the token of a language, and nothing says which"):
        read(directory)


def test_tokenizers_that_do_not_fit_are_refused(good: Path, tmp_path: Path) -> None:
    other = write_directory(tmp_path, "t5")
    with pytest.raises(ExportError, match=r"the source tokenizer is of another model than .*: token \d+ is '.*' there"):
        read(good, tokenizer=other)
    with pytest.raises(ExportError, match=r"--tokenizer .*gone is not a directory"):
        read(good, tokenizer=tmp_path / "gone")
    with pytest.raises(ExportError, match="--from-ctranslate2 needs --tokenizer DIR"):
        read_import(ImportOptions("ctranslate2", str(good)), lambda _: None)


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
        read(tmp_path, tokenizer=good.parent / "huggingface")
