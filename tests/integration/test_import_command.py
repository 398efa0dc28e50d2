"""`dragoman-export --from-transformers`: what the bundle holds and answers, and the check against its origin."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer
from transformers.models.auto import AutoModelForSeq2SeqLM

from dragoman import Client
from dragoman.local import LocalServer
from dragoman.results import Result
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import MANIFEST_FILE
from tests.support.export_command import refusal, run_export
from tests.support.huggingface_directories import lines
from tests.support.huggingface_models import LONGEST, write_model

SOURCES = 16
MOST = 30  # tokens of an answer
pytestmark = pytest.mark.usefixtures("shared_graphs")


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory, shared_graphs: None) -> Path:
    """The directory of a model, with a bundle beside it."""
    directory = write_model(tmp_path_factory.mktemp("import"), "marian", sharpness=2)
    (directory / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A model of nothing\n")
    run_export("--from-transformers", directory, directory.parent / "bundle", "--device", "cpu")
    return directory


def test_bundle_describes_the_import(marian: Path) -> None:
    manifest = load_bundle(marian.parent / "bundle").manifest
    assert (manifest.name, manifest.license, manifest.examples) == ("bundle", "cc-by-4.0", [])
    assert manifest.origin == {"name": "marian", "license": "cc-by-4.0"}
    assert manifest.training["library"].startswith("transformers 5")
    assert manifest.training["largest_logit_difference"] < 1e-3
    assert manifest.parity["greedy"]["sources"] > 60
    assert manifest.text is not None
    assert {"deu", "fra"} == set(manifest.text.languages)
    assert {"source.spm", "target.spm"} <= set(manifest.files)


def test_bundle_is_checked_against_its_origin(marian: Path, tmp_path: Path) -> None:
    bundle = marian.parent / "bundle"
    output = run_export("--check", bundle, "--from-transformers", marian, "--device", "cpu")
    assert "not checked" not in output
    assert "not checked: whether cached step and scorer match" in run_export("--check", bundle, "--device", "cpu")
    other = write_model(tmp_path, "bart")
    output = run_export("--check", bundle, "--from-transformers", other, "--device", "cpu", status=1)
    assert "the shapes of the models differ" in output.replace("\n", " ")


def test_server_answers_as_generate_does(marian: Path) -> None:
    """Texts with a language, greedily and with a beam, and a request without options: the model's own settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses, which Marian's class never calls
        tokenizer: Any = AutoTokenizer.from_pretrained(marian, local_files_only=True)
    texts = [text for text in lines()[:SOURCES] if len(tokenizer(f">>deu<< {text}").input_ids) <= LONGEST]
    theirs: Any = AutoModelForSeq2SeqLM.from_pretrained(marian, local_files_only=True).eval()
    with LocalServer("--bundle", str(marian.parent / "bundle")) as server, Client(server.address) as client:
        model = client.model()
        assert [(each.code, each.source, each.target) for each in model.languages] == [
            ("deu", False, True),
            ("fra", False, True),
        ]
        assert model.default_options["max_new_tokens"] == LONGEST - 2  # without begin and end token
        for code, ours, settings in (
            ("deu", {}, {}),
            ("fra", {"max_new_tokens": MOST}, {"max_length": MOST + 2}),
            (
                "deu",
                {"beam_size": 4, "length_penalty": 0.6, "max_new_tokens": MOST},
                {"num_beams": 4, "length_penalty": 0.6, "max_length": MOST + 2},
            ),
        ):
            results = client.generate_batch(texts, target_language=code, tokens=True, **ours)
            answers = [[token.id for token in result.best.tokens] for result in results if isinstance(result, Result)]
            expected = []
            for text in texts:
                source = torch.tensor([tokenizer(f">>{code}<< {text}").input_ids])
                made = theirs.generate(input_ids=source, **settings)[0, 1:].tolist()
                expected.append(made[: made.index(tokenizer.eos_token_id)])
            assert answers == expected, (code, ours)


def test_precisions_are_judged_by_the_answers_in_fp32(marian: Path, tmp_path: Path) -> None:
    sources = tmp_path / "sources.txt"
    sources.write_text("\n".join(lines()[:20]))
    options = ("--precision", "int8", "--max-quality-loss", "100", "--device", "cpu", "--sources", sources)
    run_export("--from-transformers", marian, tmp_path / "bundle", *options)
    manifest = load_bundle(tmp_path / "bundle").manifest
    assert (manifest.precision, manifest.quality) == ("int8", {})
    assert manifest.loss["data"] == "sample texts"
    assert manifest.loss["quality"]["chrF"]["fp32"] == 100
    assert 0 <= manifest.loss["points_lost"] < 60
    assert manifest.examples[0] in lines()[:20]


def test_text_that_it_cannot_read_skips_an_imported_model(marian: Path, tmp_path: Path) -> None:
    shutil.copytree(marian.parent / "bundle", tmp_path / "bundle")
    manifest = tmp_path / "bundle" / MANIFEST_FILE
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"carries_text": True, "format_version": 6}))
    texts = [" ".join(text.split(" ")[:6]) for text in lines()[:SOURCES] if len(text.split(" ")) > 5]
    with LocalServer("--bundle", str(tmp_path / "bundle")) as server, Client(server.address) as client:

        def answers(texts: list[str]) -> list[str]:
            results = client.generate_batch(texts, target_language="fra", max_new_tokens=MOST)
            return [result.text if isinstance(result, Result) else str(result) for result in results]

        plain = answers(texts)
        assert answers([f"🎉 {text} 👍🏽" for text in texts]) == [f"🎉 {answer} 👍🏽" for answer in plain]
        for place in range(1, 6):
            words = [text.split(" ") for text in texts]
            found = answers([" ".join([*each[:place], "שלום", *each[place:]]) for each in words])
            assert [text.count("שלום") for text in found] == [1] * len(texts)
            without = ["".join(text.replace("שלום", "").split()) for text in found]
            assert without == ["".join(text.split()) for text in plain]


@pytest.mark.parametrize("layout", ["bart", "byt5"])
def test_text_cannot_skip_a_model_that_reads_bytes(layout: str, tmp_path: Path) -> None:
    message = refusal("--from-transformers", write_model(tmp_path, layout), tmp_path / "bundle", "--carry-text")
    assert "its tokenizer spells all text as bytes, so --carry-text would carry nothing" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-transformers", "here", "run", "bundle"], "takes the place of RUN"),
        (["run", "bundle", "--revision", "main"], "need an import"),
        (["--from-transformers", "here"], "pass RUN and BUNDLE to make a bundle"),
    ],
)
def test_arguments_that_contradict_each_other(arguments: list[str], message: str) -> None:
    assert message in " ".join(run_export(*arguments, status=2).replace("│", " ").split())
