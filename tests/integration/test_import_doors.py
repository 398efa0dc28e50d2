"""`dragoman-export` with models of other programs than transformers: bundles answer as those programs do, refusals."""

from pathlib import Path
from typing import Any

import ctranslate2
import pytest
from safetensors.torch import load_file, save_file

from dragoman import Client
from dragoman.local import LocalServer
from dragoman.results import Result
from dragoman_server.bundle.load import load_bundle
from tests.support.export_command import refusal, run_export
from tests.support.huggingface_directories import lines
from tests.support.huggingface_models import LONGEST, write_model

SOURCES = 40
MOST = 30  # tokens of an answer
END = 0  # Marian's end token
END_BONUS = 8.0  # logits; so that half of the answers end
# Options of requests, and what they are called by CTranslate2.
SEARCHES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_decoding_length": LONGEST - 1}),  # the defaults
    ({"beam_size": 1, "max_new_tokens": MOST}, {"beam_size": 1, "max_decoding_length": MOST}),
    (
        {"beam_size": 4, "length_penalty": 0.6, "max_new_tokens": MOST},
        {"beam_size": 4, "length_penalty": 0.6, "max_decoding_length": MOST},
    ),
]
pytestmark = pytest.mark.usefixtures("shared_graphs")


def assert_answers(bundle: Path, converted: Path, **request: Any) -> None:
    """Asserts that a server of the bundle gives the tokens that CTranslate2 gives with the converted model."""
    translator = ctranslate2.Translator(str(converted), compute_type="float32", intra_threads=1)
    texts = lines()[:SOURCES]
    with LocalServer("--bundle", str(bundle)) as server, Client(server.address) as client:
        sources = [[token.text for token in client.tokenize(text, **request)] for text in texts]
        for ours, theirs in SEARCHES:
            results = client.generate_batch(texts, tokens=True, **request, **ours)
            answers = [[token.text for token in result.best.tokens] for result in results if isinstance(result, Result)]
            expected = [result.hypotheses[0] for result in translator.translate_batch(sources, **theirs)]
            assert answers == expected, ours
        assert len({tuple(answer) for answer in answers}) > SOURCES // 4


@pytest.fixture(scope="module")
def ctranslate2_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of OPUS-MT's layout as CTranslate2 has it, with its tokenizer beside it."""
    folder = tmp_path_factory.mktemp("ctranslate2")
    directory = write_model(folder, "marian", filled=False)
    weights = load_file(directory / "model.safetensors")
    weights["final_logits_bias"][0, END] += END_BONUS
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    ctranslate2.converters.TransformersConverter(str(directory)).convert(str(folder / "model"))
    for weights_or_settings in ("model.safetensors", "generation_config.json"):
        (directory / weights_or_settings).unlink()
    directory.rename(folder / "tokenizer")
    return folder


def test_answers_are_those_of_ctranslate2(ctranslate2_directory: Path) -> None:
    model, bundle = ctranslate2_directory / "model", ctranslate2_directory / "bundle"
    sources = ctranslate2_directory / "sources.txt"  # few, to save time
    sources.write_text("\n".join(lines()[:8]))
    options = ("--tokenizer", ctranslate2_directory / "tokenizer", "--sources", sources, "--device", "cpu")
    run_export("--from-ctranslate2", model, bundle, *options)
    manifest = load_bundle(bundle).manifest
    assert (manifest.origin, manifest.training["library"]) == ({"name": "model"}, "CTranslate2")
    assert_answers(bundle, model, target_language="deu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-ctranslate2", "{0}/model"], "--from-ctranslate2 needs --tokenizer DIR"),
        (
            ["--from-ctranslate2", "{0}/gone", "--tokenizer", "{0}/tokenizer"],
            "--from-ctranslate2 {0}/gone is not a dir",
        ),
        (["--from-ctranslate2", "{0}/tokenizer", "--tokenizer", "{0}/tokenizer"], "model.bin: No such file"),
        (["--from-ctranslate2", "{0}/model", "--tokenizer", "{0}/model"], "tokenizer.json is missing"),
        (["--from-marian", "{0}/model.npz"], "--from-marian needs --tokenizer"),
        (["--from-marian", "{0}/model.npz", "--tokenizer", "{0}/tokenizer"], "model.npz: No such file"),
        (["--from-marian", "{0}/model/model.bin", "--tokenizer", "{0}/tokenizer"], "take the .npz"),
    ],
)
def test_refusals_are_one_sentence_and_leave_nothing(
    arguments: list[str], message: str, ctranslate2_directory: Path, tmp_path: Path
) -> None:
    filled = [argument.format(ctranslate2_directory) for argument in arguments]
    assert message.format(ctranslate2_directory) in refusal(*filled, tmp_path / "bundles" / "x")
    assert not (tmp_path / "bundles").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-ctranslate2", "here", "run", "bundle"], "--from-ctranslate2 takes the place of RUN"),
        (["--from-ctranslate2", "here", "--from-transformers", "here"], "exclude each other"),
        (["--from-ctranslate2", "here", "--revision", "main", "bundle"], "--revision needs --from-transformers"),
        (["--from-transformers", "here", "--tokenizer", "there", "bundle"], "pass no --tokenizer"),
    ],
)
def test_arguments_that_contradict_each_other(arguments: list[str], message: str) -> None:
    assert message in " ".join(run_export(*arguments, status=2).replace("│", " ").split())
