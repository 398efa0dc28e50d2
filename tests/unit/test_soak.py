"""A soak detects each kind of fault."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from dragoman.v1 import generation_pb2 as pb
from tests.soak.answers import RefusedError, WrongAnswerError, assemble, is_same, is_truncated
from tests.soak.calls import GENERATION, Call, draw_calls
from tests.soak.findings import EXPECTED_CODES, MORE_THREADS, check
from tests.soak.monitor import Sample
from tests.soak.processes import Counts

REST = Sample(0.0, 0, 0, 0, 16, 24, 0, 200 << 20, 0.01)
LOAD = [
    Sample(float(second), 70, 40, 90, 19, 100, 80, (250 << 20) + second * 1000, 0.05) for second in range(0, 600, 10)
]
LINE = '{"event": "request", "level": "info"}\n'


def counts(**more: Any) -> Counts:
    good = Counts(right=100, killed=3, codes=Counter(EXPECTED_CODES), misbehaviours=Counter(["silent"]))
    return replace(good, **more)


def failed_checks(**faults: Any) -> list[str]:
    recorded = {"before": REST, "during": LOAD, "after": REST, "counts": counts(), "log": LINE, **faults}
    return [finding.claim for finding in check(settle_seconds=10.0, **recorded) if not finding.holds]


def test_healthy_server_passes() -> None:
    assert failed_checks() == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"counts": counts(wrong=1, faults=["Generate, patient: UNKNOWN"])}, "every answer"),
        ({"counts": counts(killed=0)}, "killed"),
        ({"counts": counts(misbehaviours=Counter())}, "all kinds"),
        ({"counts": counts(outstayed=1)}, "silent"),
        ({"after": replace(REST, waiting=1)}, "nothing waits or runs"),
        ({"after": replace(REST, rows=1)}, "nothing waits or runs"),
        ({"after": replace(REST, in_flight=1)}, "nothing waits or runs"),
        ({"after": replace(REST, connections=1)}, "nothing waits or runs"),
        ({"after": replace(REST, threads=16 + MORE_THREADS + 1)}, "threads"),
        ({"after": replace(REST, files=29)}, "files"),
        ({"after": replace(REST, health_seconds=None)}, "SERVING"),
        ({"during": [*LOAD[:-1], replace(LOAD[-1], health_seconds=None)]}, "SERVING"),
        ({"during": [replace(sample, resident_bytes=int(2e8 + sample.seconds * 1e5)) for sample in LOAD]}, "memory"),
        ({"log": LINE + '{"event": "call failed", "level": "error"}\n'}, "log"),
        ({"log": LINE + "Traceback (most recent call last):\n"}, "log"),
    ],
)
def test_each_fault_fails_one_check(fault: dict[str, Any], words: str) -> None:
    [claim] = failed_checks(**fault)
    assert words in claim


def test_reports_of_processes_add_up() -> None:
    total = Counts(killed=2)
    for number in (1, 2):
        total.add_report(json.loads(json.dumps(vars(counts(right=number, faults=[f"fault {number}"], killed=0)))))
    assert (total.right, total.killed, total.faults) == (3, 2, ["fault 1", "fault 2"])
    assert total.codes == Counter(dict.fromkeys(EXPECTED_CODES, 2))


def test_short_soak_does_not_judge_memory() -> None:
    growing = [
        replace(sample, seconds=sample.seconds / 10, resident_bytes=int(1e7 * sample.seconds)) for sample in LOAD
    ]
    assert failed_checks(during=growing) == []


def hypothesis(text: str, reason: "pb.FinishReason") -> pb.Hypothesis:
    return pb.Hypothesis(text=text, finish_reason=reason)


def answer(text: str, reason: "pb.FinishReason" = pb.FINISH_REASON_EOS) -> bytes:
    return pb.GenerateResponse(hypotheses=[hypothesis(text, reason)]).SerializeToString(deterministic=True)


def test_answer_cut_by_time_limit_is_a_prefix_of_the_expected_one() -> None:
    call = Call(GENERATION + "Generate", (pb.GenerateRequest(),), limited=True)
    limit = pb.FINISH_REASON_TIME_LIMIT
    assert is_truncated(call, answer("D R AE G"), answer("D R", limit))
    assert not is_truncated(call, answer("D R AE G"), answer("D AE", limit))
    assert not is_truncated(call, answer("D R AE G"), answer("D R"))


def test_inconsistent_streams_are_wrong_answers() -> None:
    call = Call(GENERATION + "GenerateStream", (pb.GenerateRequest(),), streams=True)
    final = pb.GenerateResponse(hypotheses=[hypothesis("D R", pb.FINISH_REASON_EOS)])
    pieces = [pb.GenerateStreamResponse(text="D"), pb.GenerateStreamResponse(text=" R", final=final)]
    assert assemble(call, pieces) == final.SerializeToString(deterministic=True)
    for wrong in (pieces[:1], pieces[1:], [pieces[1], pieces[0]]):
        with pytest.raises(WrongAnswerError):
            assemble(call, wrong)


def test_only_last_digits_of_scores_may_differ() -> None:
    call, other = Call(GENERATION + "Score", ()), Call(GENERATION + "Generate", ())

    def scored(log_probability: float, text: str = "D", alignment: int = 3) -> bytes:
        token = pb.Token(text=text, log_probability=log_probability)
        score = pb.TargetScore(log_probability=log_probability, tokens=[token], alignment=[alignment])
        return pb.ScoreResponse(scores=[score]).SerializeToString(deterministic=True)

    right = scored(-3.0)
    assert is_same(call, right, scored(-3.000001))
    assert not is_same(other, right, scored(-3.000001))
    for wrong in (scored(-3.001), scored(-3.0, "R"), scored(-3.0, alignment=4), b""):
        assert not is_same(call, right, wrong)


def test_batch_with_a_refused_item_is_refused() -> None:
    call = Call(GENERATION + "GenerateBatch", (pb.GenerateBatchRequest(),))
    response = pb.GenerateBatchResponse(items=[pb.BatchItem(), pb.BatchItem()])
    response.items[1].error.code = 14
    with pytest.raises(RefusedError, match="UNAVAILABLE"):
        assemble(call, [response])


def test_calls_depend_on_the_seed_alone() -> None:
    assert draw_calls(50, 3) == draw_calls(50, 3)
    assert {call.name for call in draw_calls(50, 3)} == {call.name for call in draw_calls(50, 4)}
