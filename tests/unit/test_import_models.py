"""Imported models of every Hugging Face family: their greedy answers are those of `generate`, and what else is read."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers.models.auto import AutoModelForSeq2SeqLM

from dragoman_export.bundle.options import ImportOptions
from dragoman_export.errors import ExportError
from dragoman_export.huggingface.model import read_model
from dragoman_export.imports import SAMPLES, read_import, read_sources
from dragoman_export.original import Original
from dragoman_training.data.batches import pad
from tests.reference.greedy import greedy
from tests.support.huggingface_directories import lines
from tests.support.huggingface_models import LONGEST, MODELS, write_model

TEXTS = 24
MOST = 24  # tokens of an answer
FORCED = {"m2m_100": "de", "nllb": "deu_Latn", "mbart50": "de_DE", "plbart": "en_XX"}


def read(directory: Path, **options: Any) -> Original:
    return read_import(ImportOptions("transformers", str(directory), **options), lambda _: None)


def tokenizer_of(directory: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses, which Marian's class never calls
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)


@pytest.mark.parametrize("layout", MODELS)
def test_greedy_answers_are_those_of_generate(layout: str, tmp_path: Path) -> None:
    directory = write_model(tmp_path, layout)
    original = read(directory)
    assert original.text is not None
    theirs: Any = AutoModelForSeq2SeqLM.from_pretrained(directory, local_files_only=True).eval()
    tokenizer = tokenizer_of(directory)
    sources = [tokenizer(text, truncation=True, max_length=LONGEST).input_ids for text in lines()[:TEXTS]]
    forced = original.text.languages[FORCED[layout]].target if original.text.forces_language else None
    begin = [original.tokens.begin] if forced is None else [original.tokens.begin, forced]
    rules = {"forced_bos_token_id": forced, "forced_eos_token_id": None, "no_repeat_ngram_size": 0}
    ids = pad(sources, original.tokens.pad)
    made = theirs.generate(
        input_ids=ids,
        attention_mask=(ids != original.tokens.pad).long(),
        num_beams=1,
        do_sample=False,
        max_length=MOST + 1,
        encoder_no_repeat_ngram_size=0,
        **rules,
    )
    end = original.tokens.end
    expected = [row[: row.index(end)] if end in row else row for row in made[:, 1:].tolist()]
    assert greedy(original.model, sources, MOST, begin, end) == expected
    assert len({tuple(row) for row in expected}) > TEXTS // 4


def test_languages_and_their_defaults(tmp_path: Path) -> None:
    texts = {}
    for layout in ("nllb", "mbart"):
        original = read(write_model(tmp_path, layout))
        assert original.text is not None
        texts[layout] = original.text
    nllb, mbart = texts.values()
    assert (nllb.source_language, nllb.target_language, nllb.forces_language) == ("eng_Latn", "", True)
    # The first decoder input is a language, which can't be chosen then.
    assert (mbart.source_language, mbart.target_language, mbart.forces_language) == ("en_XX", "de_DE", False)
    assert [code for code, language in mbart.languages.items() if language.target is not None] == ["de_DE"]
    settings = tmp_path / "nllb" / "generation_config.json"
    french = nllb.languages["fra_Latn"].target
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"forced_bos_token_id": french}))
    read_again = read(tmp_path / "nllb").text
    assert read_again is not None
    assert read_again.target_language == "fra_Latn"


def test_what_the_library_computes_differently_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_model(tmp_path, "bart")

    def spoilt(folder: Path, config: Any) -> Any:
        model: Any = read_model(folder, config)
        model.encoder.layers[1].feed_forward.contract.bias.data[3] += 0.1
        return model

    monkeypatch.setattr("dragoman_export.huggingface.reader.read_model", spoilt)
    with pytest.raises(ExportError, match=r"the imported model's logits differ from those of transformers 5\S+ by 0\."):
        read(directory)


def test_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    directory, other = write_model(tmp_path, "t5"), write_model(tmp_path, "byt5")
    (other / "model.safetensors").rename(directory / "model.safetensors")
    (other / "config.json").rename(directory / "config.json")
    with pytest.raises(ExportError, match=r"the source tokenizer has ids up to 1099, but the model has 384 tokens"):
        read(directory)


def test_sources_are_the_lines_of_a_file(tmp_path: Path) -> None:
    assert len(read_sources(SAMPLES)) > 60
    file = tmp_path / "sources.txt"
    file.write_bytes(b"one\r\n\ntwo words\none\n \n")
    assert read_sources(file) == ["one", "two words"]
    for content, message in ((b"\n \n", "has no text"), (b"\xff", "cannot be read")):
        file.write_bytes(content)
        with pytest.raises(ExportError, match=message):
            read_sources(file)
    with pytest.raises(ExportError, match="cannot be read"):
        read_sources(tmp_path / "gone")
