"""A soak that finds nothing wrong would be worth nothing if it could not."""

from dataclasses import replace
from typing import Any

import pytest

from dragoman.v1 import generation_pb2 as pb
from tests.soak.answers import RefusedError, WrongAnswerError, beginning, same, whole
from tests.soak.asks import GENERATION, Ask, draw_asks
from tests.soak.crowd import Seen
from tests.soak.verdict import MANNERS, MORE_THREADS, findings
from tests.soak.watch import Sample

REST = Sample(0.0, 0, 0, 0, 16, 24, 0, 200 << 20, 0.01)
LOAD = [
    Sample(float(second), 70, 40, 90, 19, 100, 80, (250 << 20) + second * 1000, 0.05) for second in range(0, 600, 10)
]
LINE = '{"event": "request", "level": "info"}\n'


def seen(**more: Any) -> Seen:
    told = Seen(right=100, killed=3)
    told.codes.update(MANNERS)
    told.deeds.update(["silent"])
    return replace(told, **more)


def broken(
    before: Sample = REST,
    during: list[Sample] = LOAD,
    after: Sample = REST,
    told: Seen | None = None,
    log: str = LINE,
    settled: bool = True,
) -> list[str]:
    """What does not hold."""
    found = findings(before, during, after, told or seen(), log, 10.0, settled)
    return [finding.what for finding in found if not finding.holds]


def test_all_is_well() -> None:
    assert broken() == []


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"told": seen(wrong=1, faults=["Generate, patient: UNKNOWN"])}, "every answer"),
        ({"told": seen(killed=0)}, "killed"),
        ({"told": seen(deeds=type(seen().deeds)())}, "all kinds"),
        ({"told": seen(outstayed=1)}, "say nothing"),
        ({"settled": False}, "nothing waits or runs"),
        ({"after": replace(REST, threads=16 + MORE_THREADS + 1)}, "threads"),
        ({"after": replace(REST, files=29)}, "files"),
        ({"after": replace(REST, health_seconds=None)}, "serving"),
        ({"during": [*LOAD[:-1], replace(LOAD[-1], health_seconds=None)]}, "serving"),
        ({"during": [replace(each, resident_bytes=int(2e8 + each.seconds * 1e5)) for each in LOAD]}, "memory"),
        ({"log": LINE + '{"event": "call failed", "level": "error"}\n'}, "log"),
        ({"log": LINE + "Traceback (most recent call last):\n"}, "log"),
    ],
)
def test_what_is_not_well_is_told(what: dict[str, Any], words: str) -> None:
    [told] = broken(**what)
    assert words in told


def test_a_short_soak_says_nothing_of_memory() -> None:
    growing = [replace(each, seconds=each.seconds / 10, resident_bytes=int(1e7 * each.seconds)) for each in LOAD]
    assert broken(during=growing) == []


def hypothesis(text: str, reason: "pb.FinishReason") -> pb.Hypothesis:
    return pb.Hypothesis(text=text, finish_reason=reason)


def answer(text: str, reason: "pb.FinishReason" = pb.FINISH_REASON_EOS) -> bytes:
    return pb.GenerateResponse(hypotheses=[hypothesis(text, reason)]).SerializeToString(deterministic=True)


def test_a_limited_answer_must_be_a_beginning_of_the_right_one() -> None:
    ask = Ask(GENERATION + "Generate", (pb.GenerateRequest(),), limited=True)
    limit = pb.FINISH_REASON_TIME_LIMIT
    assert beginning(ask, answer("D R AE G"), answer("D R", limit))
    assert not beginning(ask, answer("D R AE G"), answer("D AE", limit))
    assert not beginning(ask, answer("D R AE G"), answer("D R"))


def test_streams_that_contradict_themselves_are_no_answers() -> None:
    ask = Ask(GENERATION + "GenerateStream", (pb.GenerateRequest(),), streams=True)
    final = pb.GenerateResponse(hypotheses=[hypothesis("D R", pb.FINISH_REASON_EOS)])
    pieces = [pb.GenerateStreamResponse(text="D"), pb.GenerateStreamResponse(text=" R", final=final)]
    assert whole(ask, pieces) == final.SerializeToString(deterministic=True)
    for wrong in (pieces[:1], pieces[1:], [pieces[1], pieces[0]]):
        with pytest.raises(WrongAnswerError):
            whole(ask, wrong)


def test_scores_may_differ_in_their_last_digits_and_nothing_else_may() -> None:
    ask, other = Ask(GENERATION + "Score", ()), Ask(GENERATION + "Generate", ())

    def scored(log_probability: float, text: str = "D", alignment: int = 3) -> bytes:
        token = pb.Token(text=text, log_probability=log_probability)
        score = pb.TargetScore(log_probability=log_probability, tokens=[token], alignment=[alignment])
        return pb.ScoreResponse(scores=[score]).SerializeToString(deterministic=True)

    right = scored(-3.0)
    assert same(ask, right, scored(-3.000001))
    assert not same(other, right, scored(-3.000001))
    for wrong in (scored(-3.001), scored(-3.0, "R"), scored(-3.0, alignment=4), b""):
        assert not same(ask, right, wrong)


def test_a_batch_is_answered_when_all_of_it_is() -> None:
    ask = Ask(GENERATION + "GenerateBatch", (pb.GenerateBatchRequest(),))
    response = pb.GenerateBatchResponse(items=[pb.BatchItem(), pb.BatchItem()])
    response.items[1].error.code = 14
    with pytest.raises(RefusedError, match="UNAVAILABLE"):
        whole(ask, [response])


def test_a_seed_gives_the_same_calls() -> None:
    assert draw_asks(50, 3) == draw_asks(50, 3)
    assert {ask.name for ask in draw_asks(50, 3)} == {ask.name for ask in draw_asks(50, 4)}
