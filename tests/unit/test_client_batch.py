"""The outcomes and the retries of generate_batch, without a server."""

import grpc
import pytest

from dragoman.errors import DeadlineExceededError, ItemError, ServerError
from dragoman.pipeline import Batch
from dragoman.retry import NO_RETRY, Attempts, RetryPolicy
from dragoman.v1 import generation_pb2 as pb
from tests.support.scripted_server import Fail

POLICY = RetryPolicy(attempts=3, initial_delay=0.1, jitter=0)
LOST = pb.BatchItem(error=Fail(grpc.StatusCode.UNAVAILABLE, "a worker died").status())
LATER = pb.BatchItem(error=Fail(grpc.StatusCode.UNAVAILABLE, "stopping", retry_after=0.5).status())


def answer(text: str) -> pb.BatchItem:
    return pb.BatchItem(response=pb.GenerateResponse(hypotheses=[pb.Hypothesis(text=text)]))


def response(*items: pb.BatchItem) -> pb.GenerateBatchResponse:
    return pb.GenerateBatchResponse(items=items)


def asked(batch: Batch) -> list[str]:
    return [each.text for each in batch.request.inputs] if batch.request is not None else []


def told(batch: Batch) -> list[str]:
    return [str(each.error) if isinstance(each, ItemError) else each.text for each in batch.outcomes()]


def test_a_batch_leaves_out_what_cannot_be_sent_and_keeps_the_order() -> None:
    batch, attempts = Batch(["a", "\ud800", "b"]), Attempts(POLICY, None)
    assert asked(batch) == ["a", "b"]
    with pytest.raises(ServerError, match="answered 1 of 2 inputs"):
        batch.answered(response(answer("A")), attempts)
    refusal = Fail(grpc.StatusCode.INVALID_ARGUMENT, "is bad", field="inputs[1].text").status()
    assert batch.answered(response(answer("A"), pb.BatchItem(error=refusal)), attempts) == 0
    assert batch.request is None
    first, second, third = batch.outcomes()
    assert not isinstance(first, ItemError)
    assert first.text == "A"
    assert isinstance(second, ItemError)
    assert (second.index, second.code) == (1, "INVALID_ARGUMENT")
    assert "lone surrogate" in str(second)
    assert isinstance(third, ItemError)
    assert (third.index, str(third.error)) == (2, "inputs[1].text is bad")


def test_what_was_lost_is_sent_again_after_the_longest_wait_that_was_asked_for() -> None:
    batch, attempts = Batch("abcd"), Attempts(POLICY, None)
    assert batch.answered(response(LOST, answer("B"), LATER, answer("D")), attempts) == 0.5
    assert asked(batch) == ["a", "c"]
    assert batch.answered(response(LOST, answer("C")), attempts) == pytest.approx(0.2)
    assert asked(batch) == ["a"]
    assert batch.answered(response(answer("A")), attempts) == 0
    assert (asked(batch), told(batch)) == ([], ["A", "B", "C", "D"])


@pytest.mark.parametrize("attempts", [Attempts(NO_RETRY, None), Attempts(POLICY, 0.05)])
def test_where_there_is_no_other_attempt_the_loss_stays(attempts: Attempts) -> None:
    batch = Batch("ab")
    assert batch.answered(response(LOST, answer("B")), attempts) == 0
    assert (asked(batch), told(batch)) == ([], ["a worker died", "B"])


def test_a_later_failure_is_that_of_what_was_lost_alone_and_a_first_one_that_of_all() -> None:
    batch, attempts = Batch("ab"), Attempts(POLICY, None)
    with pytest.raises(DeadlineExceededError):
        batch.failed(DeadlineExceededError("late"))
    batch.answered(response(LOST, answer("B")), attempts)
    batch.failed(DeadlineExceededError("late"))
    assert (asked(batch), told(batch)) == ([], ["late", "B"])


def test_nothing_is_sent_where_there_is_nothing() -> None:
    assert (Batch([]).request, Batch([]).outcomes()) == (None, [])
    batch = Batch(["\ud800"])
    assert batch.request is None
    assert len(batch.outcomes()) == 1
