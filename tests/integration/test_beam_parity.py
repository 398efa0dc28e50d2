"""The same weights give the same beams here, in CTranslate2 (on 150 English words) and in Hugging Face transformers.

There are two stopping rules. The exact one is our default, and early_stopping="never" in transformers. With the other,
the search ends when as many hypotheses have finished as the beam is wide: early_stopping=True here and in transformers,
and in CTranslate2 unless all penalties are 0, where a negligible coverage penalty makes it follow that rule. With
width 1 the others decode greedily, which is early_stopping here.
"""

from concurrent.futures import ThreadPoolExecutor

import ctranslate2
import pytest

from dragoman import Client
from dragoman_server.core.search_options import BeamOptions, SearchOptions, Stopping
from tests.support import parity
from tests.support.parity import (
    MAX_NEW_TOKENS,
    NEGLIGIBLE,
    Answers,
    Shipped,
    differing,
    from_ctranslate2,
    from_hugging_face,
    from_server,
)

WORDS = parity.WORDS[::2]
FEWER_WORDS = WORDS[::3]
WIDTHS = (1, 2, 4, 5)
PENALTIES = (0.0, 0.6, 1.0, 2.0)
EARLY, EXACT = True, False
AT_ONCE = 4  # batches in flight

Setting = tuple[int, float, bool]
"""Width, length penalty, early stopping."""

widths = pytest.mark.parametrize("width", WIDTHS)
penalties = pytest.mark.parametrize("penalty", PENALTIES)


@pytest.fixture(scope="module")
def ours(shipped_client: Client) -> dict[Setting, Answers]:
    """Our answers to all words with every setting. Beams of several widths and rules share the server's steps."""

    def ask(setting: Setting) -> Answers:
        width, penalty, early = setting
        return from_server(
            shipped_client,
            WORDS,
            beam_size=width,
            num_hypotheses=width,
            length_penalty=penalty,
            early_stopping=early,
        )

    exact = [(width, penalty, EXACT) for penalty in PENALTIES for width in WIDTHS if width > 1]
    early = [(width, penalty, EARLY) for penalty in PENALTIES for width in WIDTHS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(exact + early, pool.map(ask, exact + early), strict=True))


def assert_same(shipped: Shipped, setting: Setting, words: list[str], ours: Answers, theirs: Answers) -> None:
    """Words may differ where a decision is so close that rounding may turn it."""
    width, penalty, early = setting
    beam = BeamOptions(width, length_penalty=penalty, stopping=Stopping.EARLY if early else Stopping.EXACT)
    options = SearchOptions(MAX_NEW_TOKENS, num_hypotheses=width, beam=beam)
    for i in differing(ours, theirs):
        assert shipped.undecided(words[i], options), f"{words[i]}\n  ours   {ours[i]}\n  theirs {theirs[i]}"


def assert_hugging_face_finds(
    shipped: Shipped, ours: dict[Setting, Answers], setting: Setting, **stopping: bool | str
) -> None:
    width, penalty, _ = setting
    theirs = from_hugging_face(
        shipped, FEWER_WORDS, num_beams=width, num_return_sequences=width, length_penalty=penalty, **stopping
    )
    expected = [ours[setting][WORDS.index(word)] for word in FEWER_WORDS]
    assert_same(shipped, setting, FEWER_WORDS, expected, theirs)


@widths
@penalties
def test_hugging_face_finds_the_same(
    shipped: Shipped, ours: dict[Setting, Answers], width: int, penalty: float
) -> None:
    if width == 1:
        assert_hugging_face_finds(shipped, ours, (width, penalty, EARLY))
    else:
        assert_hugging_face_finds(shipped, ours, (width, penalty, EXACT), early_stopping="never")


@pytest.mark.parametrize("width", WIDTHS[1:])
@penalties
def test_hugging_face_finds_the_same_with_early_stopping(
    shipped: Shipped, ours: dict[Setting, Answers], width: int, penalty: float
) -> None:
    assert_hugging_face_finds(shipped, ours, (width, penalty, EARLY), early_stopping=True)


@widths
@penalties
def test_ctranslate2_finds_the_same(
    shipped: Shipped,
    translator: ctranslate2.Translator,
    ours: dict[Setting, Answers],
    width: int,
    penalty: float,
) -> None:
    coverage = {"coverage_penalty": NEGLIGIBLE} if width > 1 and penalty == 0 else {}
    theirs = from_ctranslate2(
        shipped, translator, WORDS, beam_size=width, num_hypotheses=width, length_penalty=penalty, **coverage
    )
    setting = (width, penalty, EARLY)
    assert_same(shipped, setting, WORDS, ours[setting], theirs)


def test_the_settings_have_an_effect(ours: dict[Setting, Answers]) -> None:
    """Otherwise agreement would prove little."""
    assert len(WORDS) == 150
    for width in WIDTHS[1:]:
        for penalty in PENALTIES[1:]:
            assert len(differing(ours[width, 0.0, EXACT], ours[width, penalty, EXACT])) > len(WORDS) / 2  # scores, too
            assert len(differing(ours[width, penalty, EARLY], ours[width, penalty, EXACT])) > len(WORDS) / 10
    for one, other in ((1, 2), (2, 5)):
        best = [[[a[0].ids for a in ours[width, penalty, EARLY]] for penalty in PENALTIES] for width in (one, other)]
        assert best[0] != best[1]
    lengths = [len(answer.ids) for answers in ours[5, 2.0, EXACT] for answer in answers]
    assert min(lengths) < MAX_NEW_TOKENS / 2
    assert max(lengths) == MAX_NEW_TOKENS
