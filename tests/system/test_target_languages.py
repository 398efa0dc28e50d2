"""A model of two target languages, from its corpus to the server: requests name the language."""

from pathlib import Path

import pytest

from dragoman import Client
from dragoman.errors import InvalidArgumentError
from dragoman.local import LocalServer
from dragoman_training.evaluation.answers import answer
from dragoman_training.run.load import load_run
from tests.support.export_command import run_export
from tests.support.training import run_training, small_recipe


def test_requests_name_the_target_language(tmp_path: Path) -> None:
    entries = []
    for code, word in (("de", "Nummer"), ("en", "number")):
        file = tmp_path / f"{code}.tsv"
        file.write_text("".join(f"No {n:02}\t{word} {n:02}\n" for n in range(100)))
        entries.append(f"{{file: {file}, target_language: {code}}}")
    tokenizers = "tokenizers={source: {kind: bpe, vocabulary: 400}, target: {kind: bpe, vocabulary: 400}}"
    steps = "training.steps=60", "training.learning_rate=0.01", "training.evaluate_every=60"
    recipe = small_recipe(f"data.train=[{', '.join(entries)}]", tokenizers, *steps)
    run_training(recipe, tmp_path / "run")
    run_export(tmp_path / "run", tmp_path / "bundle")

    run = load_run(tmp_path / "run")
    trained = answer(run.model, run.tokenizers, ["<2de> No 07", "<2en> No 07"])
    assert len(set(trained.values())) == 2
    with LocalServer("--bundle", str(tmp_path / "bundle"), log=tmp_path / "log") as server:
        with Client(server.address) as client:
            for text, code in (("<2de> No 07", "de"), ("<2en> No 07", "en")):
                assert client.generate("No 07", target_language=code).text == trained[text]
                assert client.generate(text).text == trained[text]
            with pytest.raises(InvalidArgumentError, match="target_language is missing"):
                client.generate("No 07")
        assert server.stop() == 0, server.log_tail()
