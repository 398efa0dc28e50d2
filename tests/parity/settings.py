"""Generation settings, as the server's options and as those of transformers' `generate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

LONGEST = 22  # tokens of an answer
SHORT = 5
Stopping = bool | Literal["never"]
_STOPPING: Mapping[Stopping, Mapping[str, Any]] = {
    True: {"early_stopping": True},
    False: {"early_stopping": False},
    "never": {"stopping": "max_length"},
}


@dataclass(frozen=True)
class Frame:
    """What a model adds to answers, or never says.

    Attributes:
        forces_first: Whether targets start with a forced token, which our lengths do not count.
        forces_end: Whether the longest answers get an end token, which our lengths do not count either.
        words: Sequences of tokens to forbid.
    """

    forces_first: bool
    forces_end: bool
    words: Sequence[tuple[int, ...]] = ()


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: Name for reports.
        ours: Keyword options of the client.
        theirs: Options of `generate`.
    """

    name: str
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]

    @property
    def beams(self) -> int:
        return int(self.theirs["num_beams"])

    @property
    def masks(self) -> bool:
        """Whether tokens are excluded, so that in greedy search the probabilities of the others change."""
        return any(self.theirs.get(key) for key in ("bad_words_ids", "no_repeat_ngram_size", "min_new_tokens"))


def make_setting(
    name: str,
    frame: Frame,
    *,
    beams: int = 1,
    penalty: float = 1.0,
    stopping: Stopping = False,
    most: int = LONGEST,
    least: int = 0,
    ngram: int = 0,
    words: Sequence[tuple[int, ...]] = (),
) -> Setting:
    """Returns a setting.

    Args:
        beams: Hypotheses of a step; 1 for greedy search.
        penalty: Length penalty.
        stopping: When a beam search ends: `early_stopping` of transformers.
        most, least: Tokens of an answer, without what `frame` adds.
        ngram: Size of n-grams that do not repeat; 0 for any.
        words: Forbidden sequences.
    """
    ours: dict[str, Any] = {"max_new_tokens": most}
    theirs: dict[str, Any] = {
        "num_beams": beams,
        "do_sample": False,
        "max_length": 1 + frame.forces_first + most + frame.forces_end,  # the start token counts, too
    }
    if beams > 1:
        ours |= {"beam_size": beams, "length_penalty": penalty, **_STOPPING[stopping]}
        theirs |= {"length_penalty": penalty, "early_stopping": stopping}
    if least:
        ours["min_new_tokens"] = least
        theirs["min_new_tokens"] = least + frame.forces_first
    if ngram:
        ours["no_repeat_ngram_size"] = theirs["no_repeat_ngram_size"] = ngram
    if words:
        ours["suppressed_tokens"] = [word[0] for word in words if len(word) == 1]
        ours["suppressed_sequences"] = [list(word) for word in words if len(word) > 1]
        theirs["bad_words_ids"] = [list(word) for word in words]
    return Setting(name, ours, theirs)


def greedy(frame: Frame) -> Setting:
    return make_setting("greedy", frame)


def all_settings(frame: Frame) -> list[Setting]:
    """Returns every setting to compare under; a common one several times, so that it gets more texts."""
    words = frame.words
    found = [greedy(frame)] * 4
    found += [
        make_setting("greedy, short", frame, most=SHORT),
        make_setting("greedy, n-grams", frame, ngram=2),
        make_setting("greedy, bad words", frame, words=words),
        make_setting("greedy, minimum length", frame, least=6),
    ]
    found += [
        make_setting(f"{beams} beams, penalty {penalty:g}, {_early(stopping)}", frame, beams=beams, penalty=penalty,
                     stopping=stopping)
        for beams in (2, 4, 5)
        for penalty in (0.0, 0.6, 1.0, 2.0)
        for stopping in (True, False, "never")
    ]  # fmt: skip
    return [
        *found,
        make_setting("4 beams, short", frame, beams=4, most=SHORT, penalty=2.0),
        make_setting("4 beams, n-grams", frame, beams=4, ngram=3, stopping=True),
        make_setting("5 beams, bad words", frame, beams=5, words=words),
        make_setting("2 beams, minimum length", frame, beams=2, least=6, penalty=0.0),
        make_setting("4 beams, all rules", frame, beams=4, penalty=0.6, ngram=2, words=words, least=4),
    ]


def comparable_settings(frame: Frame) -> list[Setting]:
    """Returns settings in which the searches of transformers and CTranslate2 follow the same rules.

    CTranslate2's beam search ends as with early stopping, and its first token after a forced one is the end token only
    where that is the most probable one.
    """
    return [greedy(frame)] + [make_setting(f"{beams} beams", frame, beams=beams, stopping=True) for beams in (2, 4, 5)]


def _early(stopping: Stopping) -> str:
    return {True: "early", False: "not early", "never": "never early"}[stopping]
