"""Requests, responses, addresses and errors of the client, without a server."""

import math
from array import array
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

import dragoman
from dragoman import calls
from dragoman.channel import grpc_target
from dragoman.errors import NotFoundError, ServerError, concerns_one_input, from_status
from dragoman.pipeline import Batch
from dragoman.requests import GenerateOptions
from dragoman.results import Attention, FinishReason, Limits, Token
from dragoman.v1 import generation_pb2 as pb
from tests.support.scripted_server import Fail


def test_every_public_name_is_there() -> None:
    assert all(getattr(dragoman, name) for name in dragoman.__all__)
    assert set(dragoman.__all__) <= set(dir(dragoman))
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        dragoman.Clinet  # noqa: B018


def test_a_text_and_its_options_become_a_request() -> None:
    call = calls.generate("a\0א🙂", model="m", max_new_tokens=0, time_limit=0.25, tokens=True)
    assert call.request == pb.GenerateRequest(
        model="m",
        input=pb.Input(text="a\0א🙂"),
        options=pb.GenerationOptions(max_new_tokens=0, time_limit=duration_pb2.Duration(nanos=250_000_000)),
        details=pb.Details(tokens=True),
    )


EVERY_OPTION: GenerateOptions = {
    "max_new_tokens": 9,
    "time_limit": 1.5,
    "min_new_tokens": 2,
    "num_hypotheses": 3,
    "beam_size": 6,
    "length_normalization": "gnmt",
    "length_penalty": -0.5,
    "coverage_penalty": 0.25,
    "early_stopping": True,
    "patience": 2.0,
    "beam_groups": 2,
    "diversity_penalty": 0.75,
    "sample": True,
    "temperature": 0.5,
    "top_k": 40,
    "top_p": 0.875,
    "min_p": 0.125,
    "typical_p": 0.25,
    "seed": 2**64 - 1,
    "prefix": [5, 6],
    "prefix_bias": 0.5,
    "suppressed_tokens": [7, 8],
    "suppressed_sequences": ["ab", (1, 2)],
    "repetition_penalty": 1.25,
    "no_repeat_ngram_size": 3,
    "stop_sequences": ["\n", "."],
    "include_stop_sequence": True,
    "vocabulary": range(4, 7),
    "alternatives": True,
    "tokens": True,
    "log_probabilities": True,
    "top_tokens": 4,
    "alignment": True,
    "attention": True,
}


def test_every_option_of_the_api_has_its_name_and_is_sent() -> None:
    fields = {*pb.GenerationOptions.DESCRIPTOR.fields_by_name, *pb.Details.DESCRIPTOR.fields_by_name}
    assert set(GenerateOptions.__annotations__) == {"model", "priority", *fields}
    assert set(EVERY_OPTION) == fields
    request = calls.generate("a", **EVERY_OPTION).request
    assert request.options == pb.GenerationOptions(
        max_new_tokens=9,
        time_limit=duration_pb2.Duration(seconds=1, nanos=500_000_000),
        min_new_tokens=2,
        num_hypotheses=3,
        beam_size=6,
        length_normalization=pb.LENGTH_NORMALIZATION_GNMT,
        length_penalty=-0.5,
        coverage_penalty=0.25,
        early_stopping=True,
        patience=2,
        beam_groups=2,
        diversity_penalty=0.75,
        sample=True,
        temperature=0.5,
        top_k=40,
        top_p=0.875,
        min_p=0.125,
        typical_p=0.25,
        seed=2**64 - 1,
        prefix=pb.Input(token_ids=pb.TokenIds(ids=[5, 6])),
        prefix_bias=0.5,
        suppressed_tokens=[7, 8],
        suppressed_sequences=[pb.Input(text="ab"), pb.Input(token_ids=pb.TokenIds(ids=[1, 2]))],
        repetition_penalty=1.25,
        no_repeat_ngram_size=3,
        stop_sequences=["\n", "."],
        include_stop_sequence=True,
        vocabulary=pb.TokenIds(ids=[4, 5, 6]),
        alternatives=True,
    )
    assert request.details == pb.Details(
        tokens=True, log_probabilities=True, top_tokens=4, alignment=True, attention=True
    )


def test_a_priority_is_sent_where_one_is_given() -> None:
    assert calls.generate("a", priority="batch").request.priority == pb.PRIORITY_BATCH
    batch = Batch(["a"], priority="interactive").request
    assert batch is not None
    assert batch.priority == pb.PRIORITY_INTERACTIVE
    assert calls.generate_many()(pb.Input(text="a")).request.priority == pb.PRIORITY_UNSPECIFIED
    with pytest.raises(ValueError, match='priority: expected "interactive" or "batch", got \'urgent\''):
        calls.generate("a", priority="urgent")


def test_the_page_tells_of_every_option() -> None:
    page = (Path(__file__).parents[2] / "protos" / "decoding.md").read_text()
    untold = [name for name in EVERY_OPTION if f"`{name}`" not in page]
    assert untold == []


def test_every_call_that_generates_takes_the_options() -> None:
    expected = calls.generate("a", model="m", **EVERY_OPTION).request
    assert calls.generate_stream("a", model="m", **EVERY_OPTION).request == expected
    assert calls.generate_many(model="m", **EVERY_OPTION)(pb.Input(text="a")).request == expected
    batch = Batch(["a"], model="m", **EVERY_OPTION).request
    assert batch is not None
    assert (batch.model, batch.options, batch.details) == (expected.model, expected.options, expected.details)


def test_what_is_zero_is_sent() -> None:
    zeros = {"temperature": 0, "seed": 0, "top_k": 0, "min_new_tokens": 0, "prefix": "", "vocabulary": []}
    sent = calls.generate("a", **zeros).request.options
    assert {field.name for field, _ in sent.ListFields()} == set(zeros)


def test_what_is_not_given_is_not_sent() -> None:
    request = calls.generate([5, 6, 3], **dict.fromkeys(EVERY_OPTION)).request
    assert list(request.input.token_ids.ids) == [5, 6, 3]
    assert not request.input.HasField("text")
    assert not request.options.ListFields()
    assert not request.details.ListFields()


def test_empty_text_and_empty_ids_are_sent_for_the_server_to_judge() -> None:
    assert calls.generate("").request.input.HasField("text")
    assert calls.generate([]).request.input.HasField("token_ids")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ab\ud83d", r"text: 'ab\\ud83d' has the lone surrogate U\+D83D at position 2 and cannot be sent"),
        ("\udc80", r"U\+DC80 at position 0 \(byte 0x80, which is not valid UTF-8\)"),
        ("x" * 500 + "\udfff" + "y" * 500, r"text: 'x{30}\\udfffy{29}' has .* at position 500"),
    ],
)
def test_a_lone_surrogate_is_named_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        calls.generate(text)
    with pytest.raises(ValueError, match="lone surrogate"):
        calls.tokenize(text, model="", side="source")


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        ([2**31], {}, ValueError),
        ([1.5], {}, TypeError),
        (b"ab", {}, TypeError),
        (None, {}, TypeError),
        ("a", {"max_new_tokens": 2**40}, ValueError),
        ("a", {"max_new_tokens": "3"}, TypeError),
        ("a", {"time_limit": math.nan}, ValueError),
        ("a", {"time_limit": math.inf}, ValueError),
        ("a", {"model": "\ud800"}, ValueError),
        ("a", {"temprature": 1}, TypeError),
        ("a", {"temperature": math.nan}, ValueError),
        ("a", {"temperature": 1e39}, ValueError),
        ("a", {"temperature": "1"}, TypeError),
        ("a", {"seed": -1}, ValueError),
        ("a", {"seed": 2**64}, ValueError),
        ("a", {"seed": 1.0}, TypeError),
        ("a", {"sample": "yes"}, TypeError),
        ("a", {"length_normalization": "wu"}, ValueError),
        ("a", {"prefix": "\ud800"}, ValueError),
        ("a", {"prefix": 5}, TypeError),
        ("a", {"suppressed_tokens": [1, 2**31]}, ValueError),
        ("a", {"suppressed_tokens": 5}, TypeError),
        ("a", {"suppressed_sequences": "ab"}, TypeError),
        ("a", {"stop_sequences": "ab"}, TypeError),
        ("a", {"stop_sequences": [5]}, TypeError),
        ("a", {"vocabulary": "ab"}, TypeError),
    ],
)
def test_what_cannot_be_sent_is_refused(source: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        calls.generate(source, **options)


def test_a_refusal_names_the_option() -> None:
    with pytest.raises(ValueError, match=r"^stop_sequences\[1\]: .* has the lone surrogate"):
        calls.generate("a", stop_sequences=["b", "\ud800"])
    with pytest.raises(TypeError, match=r"^suppressed_sequences\[0\]\[1\]: expected an integer, got 'b'"):
        calls.generate("a", suppressed_sequences=[[1, "b"]])
    with pytest.raises(ValueError, match=r'^length_normalization: expected "length", "gnmt" or "none", got'):
        calls.generate("a", length_normalization="")
    with pytest.raises(TypeError, match=r"^source: expected a text or token ids, got NoneType"):
        calls.generate(None)  # type: ignore[arg-type]


def test_a_side_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="side: expected"):
        calls.tokenize("a", model="", side="left")  # type: ignore[arg-type]


def test_an_answer_is_read() -> None:
    hypothesis = pb.Hypothesis(text="A", finish_reason=pb.FINISH_REASON_TIME_LIMIT, target_tokens=1)
    hypothesis.tokens.add(id=4, text="a", log_probability=0)
    answer = calls.generate("a").parse(pb.GenerateResponse(hypotheses=[hypothesis], source_tokens=2, model="m"))
    assert (answer.text, answer.finish_reason, answer.model) == ("A", FinishReason.TIME_LIMIT, "m")
    assert (answer.source_tokens, answer.target_tokens, answer.log_probability) == (2, 1, None)
    assert answer.tokens == (Token(4, "a", 0.0),)
    assert (answer.score, answer.seed, answer.alignment, answer.attention, answer.source) == (None, None, (), None, ())


def test_all_hypotheses_are_read_the_best_first() -> None:
    response = pb.GenerateResponse(source_tokens=2, model="m", seed=0)
    for text in ("A", "B"):
        response.hypotheses.add(text=text, finish_reason=pb.FINISH_REASON_DEAD_END, log_probability=0, score=-0.0)
    response.hypotheses[1].attention.CopyFrom(
        pb.Attention(layers=1, heads=2, target_tokens=1, source_tokens=2, weights=[0.25, 0.75, 1, 0])
    )
    response.hypotheses[1].alignment.extend([0])
    response.source.add(id=3, text="</s>")
    answer = calls.generate("a").parse(response)
    assert [each.text for each in answer.hypotheses] == ["A", "B"]
    assert answer.best is answer.hypotheses[0]
    assert (answer.finish_reason, answer.log_probability, answer.score, answer.seed) == (
        FinishReason.DEAD_END,
        0.0,
        0.0,
        0,
    )
    assert answer.source == (Token(3, "</s>"),)
    second = answer.hypotheses[1]
    assert second.alignment == (0,)
    assert second.attention is not None
    assert second.attention.tolist() == [[[[0.25, 0.75]], [[1.0, 0.0]]]]


def attention(layers: int, heads: int, targets: int, sources: int) -> Attention:
    weights = array("f", range(layers * heads * targets * sources))
    return Attention(layers, heads, targets, sources, weights)


def test_attention_is_read_by_layer_and_head() -> None:
    found = attention(2, 3, 4, 5)
    assert found.shape == (2, 3, 4, 5)
    assert found.matrix(1, 2) == [[100.0 + 5 * target + source for source in range(5)] for target in range(4)]
    assert found.matrix(-1, -1) == found.matrix(1, 2)
    assert found.tolist()[0][1] == found.matrix(0, 1)
    for layer, head in ((2, 0), (-3, 0), (0, 3), (0, -4)):
        with pytest.raises(IndexError):
            found.matrix(layer, head)
    assert repr(found) == "Attention(shape=(2, 3, 4, 5))"


def test_the_mean_of_attention_is_over_what_is_not_named() -> None:
    found = attention(2, 3, 2, 2)
    assert found.mean(1, 2) == found.matrix(1, 2)
    assert found.mean(layer=0) == [[4.0, 5.0], [6.0, 7.0]]  # matrices start at 0, 4, 8
    assert found.mean(head=1) == [[10.0, 11.0], [12.0, 13.0]]  # at 4 and 16
    assert found.mean() == [[10.0, 11.0], [12.0, 13.0]]


def test_attention_that_is_not_whole_is_the_server_s_error() -> None:
    message = pb.Attention(layers=1, heads=1, target_tokens=1, source_tokens=2, weights=[1])
    with pytest.raises(ServerError, match=r"attention: expected \(1, 1, 1, 2\) weights, got 1"):
        calls.generate("a").parse(pb.GenerateResponse(hypotheses=[pb.Hypothesis(attention=message)]))


def test_as_many_targets_are_scored_as_were_given() -> None:
    call = calls.score("a", ["b", [4]], model="m", alignment=True, attention=False)
    targets = [pb.Input(text="b"), pb.Input(token_ids=pb.TokenIds(ids=[4]))]
    assert call.request == pb.ScoreRequest(model="m", input=pb.Input(text="a"), targets=targets, alignment=True)
    with pytest.raises(ServerError, match="scored 1 of 2 targets"):
        call.parse(pb.ScoreResponse(scores=[pb.TargetScore()]))


def test_a_model_tells_its_limits() -> None:
    call = calls.model("m")
    told = call.parse(pb.GetModelResponse(model=pb.Model(decoder_layers=3, heads=4, limits=pb.Limits(beam_size=8))))
    assert (told.decoder_layers, told.heads, told.limits) == (3, 4, Limits(beam_size=8))
    for field in pb.Limits.DESCRIPTOR.fields_by_name:
        told = call.parse(pb.GetModelResponse(model=pb.Model(limits=pb.Limits(**{field: 7}))))
        assert told.limits == Limits(**{field: 7})


def test_a_finish_reason_of_a_later_server_does_no_harm() -> None:
    response = pb.GenerateResponse(hypotheses=[pb.Hypothesis(finish_reason=99)])  # type: ignore[arg-type]
    assert calls.generate("a").parse(response).finish_reason is FinishReason.UNSPECIFIED


def test_an_answer_without_a_hypothesis_is_the_server_s_error() -> None:
    with pytest.raises(ServerError, match="no hypothesis"):
        calls.generate("a").parse(pb.GenerateResponse())


def test_a_status_becomes_an_exception_that_reads_well() -> None:
    error = from_status(
        Fail(grpc.StatusCode.INVALID_ARGUMENT, "must be 1 to 47, got 0", field="options.max_new_tokens").status()
    )
    assert isinstance(error, dragoman.InvalidArgumentError)
    assert str(error) == "options.max_new_tokens must be 1 to 47, got 0"
    assert error.violations[0].field == "options.max_new_tokens"
    status = Fail(grpc.StatusCode.INVALID_ARGUMENT, "must not be 0", field="a.b").status()
    status.message = "bad request"
    assert str(from_status(status)) == "a.b: must not be 0"
    full = from_status(Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after=0.25).status())
    assert isinstance(full, dragoman.ResourceExhaustedError)
    assert (str(full), full.retry_after) == ("the queue is full", 0.25)
    odd = from_status(Fail(grpc.StatusCode.DATA_LOSS, "").status())
    assert (type(odd), odd.code) == (ServerError, "DATA_LOSS")
    assert str(odd) == "the server answered DATA_LOSS without a message"


def test_a_wrong_option_concerns_every_input() -> None:
    def refusal(field: str | None) -> bool:
        return concerns_one_input(from_status(Fail(grpc.StatusCode.INVALID_ARGUMENT, "no", field=field).status()))

    assert refusal("input.text")
    assert refusal(None)
    assert refusal("details.attention")  # of too long an input
    assert not refusal("options.max_new_tokens")
    assert not refusal("details.top_tokens")
    assert not concerns_one_input(NotFoundError("no such model"))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:50051", "dns:///localhost:50051"),
        ("[::1]:50051", "dns:///[::1]:50051"),
        ("127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
        (["127.0.0.1:1", " 127.0.0.2:2"], "ipv4:127.0.0.1:1,127.0.0.2:2"),
        ("[::1]:1,[::1]:2", "ipv6:[::1]:1,[::1]:2"),
        ("unix:/run/dragoman.sock", "unix:/run/dragoman.sock"),
        ("dns:///headless:50051", "dns:///headless:50051"),
    ],
)
def test_an_address_becomes_a_target(address: str | list[str], expected: str) -> None:
    assert grpc_target(address) == expected


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", ":50051", "localhost:0", "localhost:99999", "a:b", "a:1,"]
)
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address: expected HOST:PORT"):
        grpc_target(address)


def test_addresses_of_two_ip_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="one IP version"):
        grpc_target("127.0.0.1:1,[::1]:2")
