"""Engines in this process as the backend of bulk work."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.bulk.backend import Answer, Backend
from dragoman.bulk.errors import BulkError, StoppedError
from dragoman.bulk.in_process import open_bundle
from dragoman.requests import GenerateOptions
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.shortlist import Shortlist
from dragoman_server.offline.backend import InProcess
from tests.support.bundles import SHIPPED_G2P

MACHINE = {"engines": 2, "max_rows": 16}
WORDS = ["speech", "a", "transformer", "speech", "zürich", "queue"]


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens bundles that are closed at the end of the test."""
    backends: list[Backend] = []

    def open_(options: GenerateOptions | None = None, bundle: Path = SHIPPED_G2P, **choices: Any) -> Backend:
        backends.append(open_bundle(bundle, options or {}, MACHINE, **choices))
        return backends[-1]

    yield open_
    for backend in backends:
        backend.close()


def texts(backend: Backend, *windows: list[str]) -> list[list[str | None]]:
    return [[answer.text for answer in window] for window in backend.answers(windows)]


def test_answers_come_window_by_window_in_order(opened: Any) -> None:
    backend = opened()
    found = list(backend.answers([WORDS, [], WORDS[::-1]]))
    assert [answer.text for answer in found[0][:3]] == ["S P IY CH", "AH", "T R AE N S F AO R M ER"]
    assert found[0][4] == Answer(
        None, "has the character 'ü' (U+00FC) at position 1 (counted from 0), which is not in the model's vocabulary"
    )
    assert found == [found[0], [], found[0][::-1]]
    assert backend.measure()[0] == 2 * len(WORDS)
    assert backend.model.startswith("g2p-en version 1 with manifest ")


def test_incomplete_answers_are_told_unless_the_length_was_chosen(opened: Any) -> None:
    [[cut]] = opened({"max_new_tokens": 2}).answers([["speech"]])
    assert cut == Answer("S P")
    loop: GenerateOptions = {"vocabulary": [4, 5], "min_new_tokens": 64}
    [[long]] = opened(loop).answers([["speech"]])
    assert long.problem == "was cut at the model's limit of 64 tokens"


def test_only_the_tokens_of_a_vocabulary_are_chosen(opened: Any) -> None:
    """Batches of plain greedy searches know no vocabulary, so these go to the server's engines."""
    bundle = load_bundle(SHIPPED_G2P)
    ids = [bundle.target_tokenizer.token_to_id(phone) for phone in ("S", "P", "CH")]
    [found] = texts(opened({"vocabulary": ids}), ["speech", "speechless"])
    assert found[0] != "S P IY CH"
    assert {phone for text in found for phone in str(text).split()} <= {"S", "P", "CH"}


def test_a_bundle_s_own_shortlist_counts_as_in_the_server(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened()
    assert isinstance(backend, InProcess)
    model = backend._model
    bundle = model._bundle
    vocabulary, source = bundle.target_tokenizer, bundle.manifest.shape.source_vocabulary
    phones = [vocabulary.token_to_id(phone) or 0 for phone in "SP"]
    common = np.array(sorted([bundle.manifest.tokens.end, *phones]))
    shortlist = Shortlist(common, np.zeros(source + 1, np.int64), common[:0], bundle.manifest.shape.target_vocabulary)
    monkeypatch.setattr(model, "_bundle", replace(bundle, shortlist=shortlist))
    monkeypatch.setattr(model, "_uses_shortlist", True)
    [[narrowed, _]] = texts(backend, ["speech", "speechless"])
    assert set(str(narrowed).split()) == {"S", "P"}


def test_samples_have_seeds_of_their_own_unless_one_is_given(opened: Any) -> None:
    many = ["onomatopoeia"] * 12
    sampling: GenerateOptions = {"sample": True, "temperature": 4.0}
    [free] = texts(opened(sampling), many)
    assert len(set(free)) > 1
    [seeded] = texts(opened({**sampling, "seed": 7}), many)
    assert len(set(seeded)) == 1
    assert texts(opened({**sampling, "seed": 7}), many[:1]) == [seeded[:1]]


@pytest.mark.parametrize(
    ("options", "machine", "kind", "sentence"),
    [
        ({"beam_size": 0}, {}, BulkError, "--beam-size is 0, but must be"),
        ({"target_language": "de"}, {}, BulkError, "--target-language: the model has no choice of target languages"),
        ({"use_shortlist": True}, {}, BulkError, "--shortlist is set, but the model has no shortlist"),
        ({}, {"memory_budget": "much"}, ValueError, "--memory-budget: "),
        ({}, {"device": "tpu"}, ValueError, "--device: "),
    ],
)
def test_what_can_not_be_used_is_named(
    options: GenerateOptions, machine: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        open_bundle(SHIPPED_G2P, options, machine)
    with pytest.raises(BulkError, match=r"/ is not a bundle: it has no manifest\.json"):
        open_bundle(Path("/"), {})


def test_the_engines_stop_when_they_should(opened: Any) -> None:
    with pytest.raises(StoppedError):
        texts(opened(should_stop=lambda: True), WORDS * 500)


@pytest.mark.parametrize("package", ["onnxruntime", "tokenizers", "structlog"])
def test_what_a_bundle_needs_is_named_where_only_the_client_is_installed(package: str, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("a\n")
    arguments = ["bulk", str(words), str(tmp_path / "out.txt"), "--bundle", str(SHIPPED_G2P)]
    lacking = f"sys.modules[{package!r}] = None; sys.argv[1:] = {arguments}"
    code = f"import sys; {lacking}; from dragoman.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"dragoman: a bundle needs the server's libraries, and {package} is not installed; `pip install '.[server]'` "
        "in a clone of Dragoman installs it; or name servers with --address\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["words.txt"]
