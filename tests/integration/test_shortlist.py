"""A model with a lexical shortlist: what the export measures, and what requests get with and without it."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dragoman import Client, InvalidArgumentError, Result
from dragoman.local import LocalServer
from dragoman_export.checks.offline_decoding import decode_greedily, encode_sources
from dragoman_export.checks.quality import PairSet
from dragoman_export.run_data import read_run
from dragoman_export.shortlist import lists, measure
from dragoman_export.shortlist.measure import ShortlistTask, add_shortlist
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.shortlist import Shortlist
from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_server.runtime.step import Step
from tests.conftest import StartServer
from tests.support.bundles import altered_copy, edit_manifest
from tests.support.quantized_bundles import write_quantized

TEXTS = ["7", "42", "90", "613", "808", "999", "1024", "4207", "5555", "8071"]


@pytest.fixture(scope="module")
def bundles(tiny_run: Path, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """The tiny model in fp32 and int8, each with a shortlist of few tokens made of its training pairs."""
    folder = tmp_path_factory.mktemp("listed")
    shutil.copytree(tiny_bundle, folder / "fp32")
    write_quantized(tiny_run, tiny_bundle, {folder / "int8": ("int8", "float")})
    original = read_run(tiny_run, print)
    assert original.training_pairs is not None
    pairs = original.training_pairs()
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "COMMON", 3)
        patch.setattr(measure, "LIKELY", (4, 100))
        patch.setattr(measure, "MOST_LOST", 100)
        for name in ("fp32", "int8"):
            data = PairSet("dev", original.data["dev"], original.metrics)
            bundle = load_bundle(folder / name)
            made[name] = add_shortlist(ShortlistTask(bundle, pairs, data, data.decode(bundle, CPU), print))
    return made


def whole(bundle: Bundle) -> Shortlist:
    """A shortlist of all target tokens."""
    shape = bundle.manifest.shape
    every = np.arange(shape.target_vocabulary)
    return Shortlist(every, np.zeros(shape.source_vocabulary + 1, np.int64), every[:0], len(every))


def test_the_manifest_tells_what_the_shortlist_costs_and_gains(bundles: dict[str, Bundle]) -> None:
    for bundle in bundles.values():
        manifest = bundle.manifest
        described = manifest.shortlist
        assert described is not None
        assert manifest.format_version == 5
        assert described.file in manifest.files
        assert 4 < described.tokens < manifest.shape.target_vocabulary
        assert described.measured["likely"] == 4, "the smallest that loses little enough"
        scores = described.measured["quality"]["exact match (%)"]
        assert described.points_lost == pytest.approx(scores["without"] - scores["with"], abs=0.01)
        assert described.default == (described.step_time["32"] < 1)
        assert bundle.shortlist is not None
        assert manifest.tokens.end in bundle.shortlist.common


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_shortlist_of_the_whole_vocabulary_changes_no_token(bundles: dict[str, Bundle], precision: str) -> None:
    bundle = bundles[precision]
    runtime = Runtime(Sessions(bundle, CPU, 1), 8)
    sources = encode_sources(bundle, TEXTS)
    assert decode_greedily(runtime, sources, whole(bundle)) == decode_greedily(runtime, sources)
    runtime.encode(sources[:3], 0)
    size = bundle.manifest.shape.target_vocabulary
    listed = runtime.step([StepRequest(size, vocabulary=tuple(range(size)))] * 3)
    found = [listed.top(row) for row in range(3)]
    for row, (ids, values) in enumerate(found):
        expected = dict(zip(*runtime.top(3, size).top(row), strict=True))
        choosable = [value > -np.inf for value in values[:size]]
        assert sum(choosable) >= size - 3
        assert [expected[token] for token in ids[: sum(choosable)]] == pytest.approx(values[: sum(choosable)], abs=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_row_gets_the_same_numbers_alone_and_beside_others(
    bundles: dict[str, Bundle], precision: str, threads: int
) -> None:
    """To the bit, although the tokens of all rows are computed together; also beside rows without a shortlist."""
    bundle = bundles[precision]
    assert bundle.shortlist is not None
    runtime = Runtime(Sessions(bundle, CPU, threads), len(TEXTS))
    sources = encode_sources(bundle, TEXTS)
    requests = [StepRequest(6, vocabulary=bundle.shortlist.candidates(source)) for source in sources]
    end = bundle.manifest.tokens.end
    runtime.encode(sources, 0)
    together = [runtime.step(requests).top(row) for row in range(len(sources))]
    fewer = [*requests[:2], StepRequest(6), *requests[3:5], StepRequest(6, vocabulary=(end, end + 1)), *requests[6:]]
    beside = [runtime.step(fewer).top(row) for row in range(len(sources))]
    for row, source in enumerate(sources):
        runtime.encode([source], 0)
        alone = runtime.step([requests[row]]).top(0)
        assert together[row] == alone
        if fewer[row] is requests[row]:
            assert beside[row] == alone
        kept = [token for token, value in zip(*alone, strict=True) if value > -np.inf]
        assert set(kept) <= set(requests[row].vocabulary or ())


@pytest.mark.parametrize("workers", [(), ("--workers", "1")])
def test_requests_choose_whether_to_use_the_shortlist(
    bundles: dict[str, Bundle], start_server: StartServer, tmp_path: Path, workers: tuple[str, ...]
) -> None:
    bundle = bundles["int8"]
    assert bundle.shortlist is not None
    folder = altered_copy(
        bundle.path, tmp_path / "default", edit_manifest(lambda d: d["shortlist"].update(default=True))
    )
    with Client(start_server("--bundle", str(folder), *workers).address) as client:
        ids = {text: [token.id for token in client.tokenize(text)] for text in TEXTS}
        target = {token.text: token.id for token in client.tokenize("nine forty two", side="target")}
        answers = client.generate_batch(TEXTS, tokens=True)
        for text, answer in zip(TEXTS, answers, strict=True):
            assert isinstance(answer, Result)
            allowed = set(bundle.shortlist.candidates(ids[text]))
            assert {token.id for token in answer.tokens} <= allowed
            assert client.generate(text, tokens=True) == answer, "whatever is beside it"
            sampled = client.generate(text, sample=True, seed=5, temperature=3.0, num_hypotheses=4, tokens=True)
            beams = client.generate(text, beam_size=4, num_hypotheses=4, tokens=True)
            for hypothesis in (*sampled.hypotheses, *beams.hypotheses):
                assert {token.id for token in hypothesis.tokens} <= allowed
        hot = [
            client.generate(text, use_shortlist=False, sample=True, seed=5, temperature=9.0, tokens=True)
            for text in TEXTS
        ]
        outside = [
            {token.id for token in answer.tokens} - set(bundle.shortlist.candidates(ids[text]))
            for text, answer in zip(TEXTS, hot, strict=True)
        ]
        assert any(outside), "without the shortlist any token may be drawn"
        text = next(text for text in TEXTS if target["forty"] not in bundle.shortlist.candidates(ids[text]))
        forced = client.generate(text, prefix="forty", tokens=True)
        assert forced.tokens[0].id == target["forty"]
        soft = client.generate(text, prefix="forty", prefix_bias=0.99, tokens=True)
        assert soft.tokens[0].id == target["forty"], "a token of the prefix may be chosen"
        own = client.generate(text, vocabulary=[target["nine"]], tokens=True)
        assert {token.id for token in own.tokens} <= {target["nine"]}


def test_a_model_without_a_shortlist_says_so(tiny_server: LocalServer) -> None:
    with Client(tiny_server.address) as client:
        assert client.generate("42", use_shortlist=False) == client.generate("42")
        with pytest.raises(InvalidArgumentError, match=r"options\.use_shortlist is true, but the model has no"):
            client.generate("42", use_shortlist=True)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_weights_are_complete_after_a_step_that_failed(
    bundles: dict[str, Bundle], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps keep the weights of listed tokens; those of tokens that joined in a failed step are written later."""
    bundle = bundles[precision]
    assert bundle.shortlist is not None
    runtime = Runtime(Sessions(bundle, CPU, 1), 4)
    sources = encode_sources(bundle, TEXTS)
    requests = [StepRequest(6, vocabulary=bundle.shortlist.candidates(source)) for source in sources]
    runtime.encode(sources[:2], 0)
    expected = runtime.step(requests[:2]).top(1)

    def fail(self: Step) -> None:
        raise MemoryError

    again = Runtime(Sessions(bundle, CPU, 1), 4)
    again.encode([sources[2], sources[1]], 0)
    again.step([requests[2], StepRequest(6, vocabulary=(bundle.manifest.tokens.end,))])
    with monkeypatch.context() as patch:
        patch.setattr(Step, "_run", fail)
        for joining in (requests[3], requests[0]):  # the second takes the places of the first
            with pytest.raises(MemoryError):
                again.step([joining, requests[4]])
    assert again.step([requests[2], requests[1]]).top(1) == expected
