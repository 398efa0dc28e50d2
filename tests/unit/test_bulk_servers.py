"""Servers as the backend of bulk work: which failures make a row bad, and which stop the work."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.bulk.backend import Answer
from dragoman.bulk.errors import BulkError, StoppedError
from dragoman.bulk.folders import find_work
from dragoman.bulk.servers import IN_FLIGHT, Servers
from dragoman.bulk.stopping import Stop
from dragoman.bulk.work import BulkWork
from dragoman.calls import model as model_call
from dragoman.client import Client
from dragoman.errors import (
    CallCancelledError,
    DeadlineExceededError,
    DragomanError,
    InvalidArgumentError,
    ItemError,
    ResourceExhaustedError,
    ServerError,
    UnavailableError,
)
from dragoman.models import ModelInfo
from dragoman.requests import GenerateOptions
from dragoman.results import FinishReason, Hypothesis, Result
from dragoman.v1 import generation_pb2 as pb

INFO = model_call("").parse(pb.GetModelResponse(model=pb.Model(name="capitals", version="3")))
BROKEN = ServerError("it broke", code="INTERNAL")


class ScriptedClient:
    """Answers in capitals, but as the test says where it says something.

    Attributes:
        failures: Errors of texts, the first of which is the first answer.
        sent: Texts in the order in which they were asked for.
        options: Options of the calls.
        closed: Whether it is closed.
    """

    def __init__(self, info: ModelInfo = INFO, **failures: list[DragomanError]) -> None:
        self.info, self.failures = info, failures
        self.sent: list[str] = []
        self.options: dict[str, Any] = {}
        self.closed = False

    def model(self, name: str) -> ModelInfo:
        return self.info

    def generate(self, source: str, **options: Any) -> Result:
        self.sent.append(source)
        if self.failures.get(source):
            raise self.failures[source].pop(0)
        reason = FinishReason.LENGTH if source.startswith("long") else FinishReason.EOS
        reason = FinishReason.DEAD_END if source.startswith("dead") else reason
        return Result((Hypothesis(source.upper(), reason, len(source)),), len(source), "capitals")

    def generate_many(self, sources: Iterable[str], **options: Any) -> Iterator[Result | ItemError]:
        self.options = options
        for index, source in enumerate(sources):
            try:
                yield self.generate(source)
            except DragomanError as error:
                yield ItemError(index, error)

    def close(self) -> None:
        self.closed = True


def backend(client: ScriptedClient, options: GenerateOptions | None = None, stop: Stop | None = None) -> Servers:
    return Servers(cast("Client", client), options or {}, stop)


def answers(client: ScriptedClient, *windows: list[str], options: GenerateOptions | None = None) -> list[list[Answer]]:
    return list(backend(client, options).answers(windows))


def test_sources_go_by_length_and_answers_come_in_order() -> None:
    client = ScriptedClient()
    windows: list[list[str]] = [[], ["a", "ccc", "bb"], [], [], ["d"], []]
    found = answers(client, *windows, options={"beam_size": 4})
    assert [[answer.text for answer in window] for window in found] == [[], ["A", "CCC", "BB"], [], [], ["D"], []]
    assert client.sent == ["ccc", "bb", "a", "d"]
    expected = {"model": "capitals@3", "priority": "batch", "beam_size": 4, "max_in_flight": IN_FLIGHT}
    assert client.options == expected
    assert backend(client).model == "capitals version 3 of servers"
    client = ScriptedClient(replace(INFO, version=""))
    answers(client, ["a"])
    assert client.options["model"] == "capitals"


def test_what_is_wrong_with_a_source_or_an_answer_is_told() -> None:
    client = ScriptedClient(
        bad=[InvalidArgumentError("input.text is bad")],
        huge=[ResourceExhaustedError("the message is over the limit")],
        once=[BROKEN],
        twice=[BROKEN, BROKEN],
    )
    window = ["bad", "huge", "once", "twice", "longer", "dead end"]
    [found] = answers(client, window)
    assert found == [
        Answer(None, "is bad"),
        Answer(None, "is too large for the server: the message is over the limit"),
        Answer("ONCE"),
        Answer(None, "made the server fail twice: it broke"),
        Answer("LONGER", "was cut at the model's limit of 6 tokens"),
        Answer("DEAD END", "ends early: the constraints allowed no further token after 8 tokens"),
    ]
    [chosen] = answers(ScriptedClient(), ["longer"], options={"max_new_tokens": 6})
    assert chosen == [Answer("LONGER")]


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("it drains"),
        DeadlineExceededError("too late"),
        CallCancelledError("the call was cancelled"),
        ResourceExhaustedError("the queue is full", retry_after=1.0),
    ],
)
def test_what_is_wrong_with_the_servers_stops_the_work_which_goes_on_later(
    tmp_path: Path, error: DragomanError
) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nbb\nc\ndd\n")
    with pytest.raises(BulkError, match=f"^{error}; run the same command to continue from what is saved"):
        BulkWork(find_work(source, out), {}, 2).run(backend(ScriptedClient(dd=[error])))
    client = ScriptedClient()
    BulkWork(find_work(source, out), {}, 2).run(backend(client))
    assert client.sent == ["dd", "c"]
    assert out.read_text() == "A\nBB\nC\nDD\n"
    assert not Path(f"{out}.bad_lines.txt").exists()


def test_servers_that_fail_at_every_source_are_to_blame_themselves() -> None:
    broken = {name: [BROKEN] * 2 for name in ("a", "b")}
    with pytest.raises(BulkError, match="every source of a window made the server fail twice: it broke"):
        answers(ScriptedClient(**broken), ["a", "b"])  # type: ignore[arg-type]
    broken = {"a": [BROKEN] * 2}
    assert answers(ScriptedClient(**broken), ["a"]) == [[Answer(None, "made the server fail twice: it broke")]]  # type: ignore[arg-type]


def test_a_signal_ends_the_wait_for_servers() -> None:
    client, stop = ScriptedClient(), Stop()
    found = backend(client, stop=stop).answers([["a"], ["b"]])
    assert next(found) == [Answer("A")]
    stop.want()
    with pytest.raises(StoppedError):
        next(found)
    assert client.sent == ["a"]
