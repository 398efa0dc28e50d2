"""Requests from arguments, results from responses, and errors from statuses, without a server."""

import math
from array import array
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

import dragoman
from dragoman import calls
from dragoman.errors import NotFoundError, ServerError, concerns_one_input, from_status
from dragoman.models import Limits
from dragoman.pipeline import Batch
from dragoman.requests import GenerateOptions, InLanguage
from dragoman.results import Attention, FinishReason, Token
from dragoman.v1 import generation_pb2 as pb
from tests.conftest import ROOT
from tests.support.scripted_server import Fail

# Every option, as an argument and as the field that is sent.
OPTIONS: list[tuple[str, Any, Any]] = [
    ("max_new_tokens", 9, 9),
    ("time_limit", 1.5, duration_pb2.Duration(seconds=1, nanos=500_000_000)),
    ("min_new_tokens", 2, 2),
    ("num_hypotheses", 3, 3),
    ("beam_size", 6, 6),
    ("length_normalization", "gnmt", pb.LENGTH_NORMALIZATION_GNMT),
    ("length_penalty", -0.5, -0.5),
    ("coverage_penalty", 0.25, 0.25),
    ("early_stopping", True, True),
    ("stopping", "max_length", pb.STOPPING_MAX_LENGTH),
    ("patience", 2.0, 2),
    ("beam_groups", 2, 2),
    ("diversity_penalty", 0.75, 0.75),
    ("sample", True, True),
    ("temperature", 0.5, 0.5),
    ("top_k", 40, 40),
    ("top_p", 0.875, 0.875),
    ("min_p", 0.125, 0.125),
    ("typical_p", 0.25, 0.25),
    ("seed", 2**64 - 1, 2**64 - 1),
    ("prefix", [5, 6], pb.Input(token_ids=pb.TokenIds(ids=[5, 6]))),
    ("prefix_bias", 0.5, 0.5),
    ("suppressed_tokens", [7, 8], [7, 8]),
    ("suppressed_sequences", ["ab", (1,)], [pb.Input(text="ab"), pb.Input(token_ids=pb.TokenIds(ids=[1]))]),
    ("repetition_penalty", 1.25, 1.25),
    ("no_repeat_ngram_size", 3, 3),
    ("encoder_no_repeat_ngram_size", 3, 3),
    ("stop_sequences", ["\n", "."], ["\n", "."]),
    ("include_stop_sequence", True, True),
    ("vocabulary", range(4, 7), pb.TokenIds(ids=[4, 5, 6])),
    ("use_shortlist", False, False),
    ("alternatives", True, True),
]
DETAILS: dict[str, Any] = {
    "tokens": True,
    "log_probabilities": True,
    "top_tokens": 4,
    "alignment": True,
    "attention": True,
}
EVERY_OPTION: dict[str, Any] = {name: value for name, value, _ in OPTIONS} | DETAILS


def test_public_names_are_importable() -> None:
    assert all(getattr(dragoman, name) for name in dragoman.__all__)
    assert set(dragoman.__all__) <= set(dir(dragoman))
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        dragoman.Clinet  # noqa: B018


def test_every_option_of_the_api_is_sent_and_documented() -> None:
    fields = {*pb.GenerationOptions.DESCRIPTOR.fields_by_name, *pb.Details.DESCRIPTOR.fields_by_name}
    languages = {"source_language", "target_language"}  # of each input
    assert set(GenerateOptions.__annotations__) == {"model", "priority", *languages, *fields}
    assert set(EVERY_OPTION) == fields
    request = calls.generate("a\0א🙂", model="m", priority="batch", **EVERY_OPTION).request
    assert request == pb.GenerateRequest(
        model="m",
        priority=pb.PRIORITY_BATCH,
        input=pb.Input(text="a\0א🙂"),
        options=pb.GenerationOptions(**{name: field for name, _, field in OPTIONS}),
        details=pb.Details(**DETAILS),
    )
    manual = (ROOT / "protos" / "decoding.md").read_text()
    assert [name for name in EVERY_OPTION if f"`{name}`" not in manual] == []


def test_every_method_of_generation_takes_the_options() -> None:
    options: dict[str, Any] = {"model": "m", "priority": "interactive", **EVERY_OPTION}
    expected = calls.generate("a", **options).request
    assert calls.generate_stream("a", **options).request == expected
    assert calls.generate_one(pb.Input(text="a"), calls.many_fields(**options)).request == expected
    batch = Batch(["a"], **options).request
    assert batch is not None
    assert (batch.model, batch.options, batch.details, batch.priority) == (
        *(expected.model, expected.options, expected.details),
        pb.PRIORITY_INTERACTIVE,
    )


def test_zeros_and_empty_values_are_sent_but_none_is_not() -> None:
    zeros = {"temperature": 0, "seed": 0, "top_k": 0, "min_new_tokens": 0, "prefix": "", "vocabulary": []}
    options = calls.generate("a", **zeros).request.options
    assert {field.name for field, _ in options.ListFields()} == set(zeros)
    request = calls.generate([5, 6, 3], priority=None, **dict.fromkeys(EVERY_OPTION)).request
    assert request == pb.GenerateRequest(input=pb.Input(token_ids=pb.TokenIds(ids=[5, 6, 3])), options={}, details={})
    assert calls.generate("").request.input.HasField("text")
    assert calls.generate([]).request.input.HasField("token_ids")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab\ud83d", r"text: 'ab\\ud83d' has the lone surrogate U\+D83D at position 2 and cannot be sent"),
        ("\udc80", r"U\+DC80 at position 0 \(byte 0x80, which is not valid UTF-8\)"),
        ("x" * 500 + "\udfff" + "y" * 500, r"text: 'x{30}\\udfffy{29}' has .* at position 500"),
    ],
)
def test_a_lone_surrogate_is_quoted_with_its_position(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calls.generate(text)
    with pytest.raises(ValueError, match="lone surrogate"):
        calls.tokenize(text, model="", side="source")


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ([2**31], {}, ValueError, "does not fit in 32 bits"),
        ([1.5], {}, TypeError, "expected an integer"),
        (b"ab", {}, TypeError, "got bytes"),
        (None, {}, TypeError, "^source: expected a text or token ids, got NoneType"),
        ("a", {"max_new_tokens": 2**40}, ValueError, "^max_new_tokens: "),
        ("a", {"max_new_tokens": "3"}, TypeError, "^max_new_tokens: "),
        ("a", {"time_limit": math.nan}, ValueError, "^time_limit: "),
        ("a", {"time_limit": math.inf}, ValueError, "^time_limit: "),
        ("a", {"time_limit": 10**400}, ValueError, "^time_limit: "),
        ("a", {"time_limit": "1"}, TypeError, "^time_limit: "),
        ("a", {"model": "\ud800"}, ValueError, "^model: "),
        ("a", {"priority": "urgent"}, ValueError, '^priority: expected "interactive" or "batch", got \'urgent\''),
        ("a", {"temprature": 1}, TypeError, "there is no option 'temprature'"),
        ("a", {"temperature": math.nan}, ValueError, "^temperature: "),
        ("a", {"temperature": 1e39}, ValueError, "^temperature: "),
        ("a", {"temperature": -(10**400)}, ValueError, "^temperature: "),
        ("a", {"temperature": "1"}, TypeError, "^temperature: "),
        ("a", {"seed": -1}, ValueError, "^seed: "),
        ("a", {"seed": 2**64}, ValueError, "^seed: "),
        ("a", {"seed": 1.0}, TypeError, "^seed: "),
        ("a", {"sample": "yes"}, TypeError, "^sample: expected True or False"),
        ("a", {"length_normalization": ""}, ValueError, '^length_normalization: expected "length", "gnmt" or "none"'),
        ("a", {"prefix": "\ud800"}, ValueError, "^prefix: "),
        ("a", {"prefix": 5}, TypeError, "^prefix: "),
        ("a", {"suppressed_tokens": [1, 2**31]}, ValueError, r"^suppressed_tokens\[1\]: "),
        ("a", {"suppressed_tokens": 5}, TypeError, "^suppressed_tokens: "),
        ("a", {"suppressed_sequences": "ab"}, TypeError, "^suppressed_sequences: "),
        ("a", {"suppressed_sequences": [[1, "b"]]}, TypeError, r"^suppressed_sequences\[0\]\[1\]: .* got 'b'"),
        ("a", {"stop_sequences": "ab"}, TypeError, "^stop_sequences: "),
        ("a", {"stop_sequences": [5]}, TypeError, r"^stop_sequences\[0\]: "),
        ("a", {"stop_sequences": ["b", "\ud800"]}, ValueError, r"^stop_sequences\[1\]: .* lone surrogate"),
        ("a", {"vocabulary": "ab"}, TypeError, "^vocabulary: "),
    ],
)
def test_values_that_cannot_be_sent_are_refused_by_name(
    source: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        calls.generate(source, **options)


@pytest.mark.parametrize("sources", ["ab", b"ab"])
def test_one_text_is_not_several_sources(sources: Any) -> None:
    message = "^sources: expected several texts or lists of token ids, got "
    with pytest.raises(TypeError, match=message):
        Batch(sources)
    with dragoman.Client("127.0.0.1:1") as client, pytest.raises(TypeError, match=message):
        client.generate_many(sources)
    with pytest.raises(TypeError, match=message):
        dragoman.AsyncClient("127.0.0.1:1").generate_many(sources)


def test_an_unknown_side_is_refused() -> None:
    with pytest.raises(ValueError, match='side: expected "source" or "target"'):
        calls.tokenize("a", model="", side="left")  # type: ignore[arg-type]


def test_a_response_becomes_a_result_with_the_best_hypothesis_first() -> None:
    response = pb.GenerateResponse(source_tokens=2, model="m", seed=0, source=[pb.Token(id=3, text="</s>")])
    response.hypotheses.add(text="A", finish_reason=pb.FINISH_REASON_DEAD_END, target_tokens=1, log_probability=0)
    response.hypotheses[0].tokens.add(id=4, text="a", log_probability=0)
    response.hypotheses.add(text="B", score=-0.0, alignment=[0])
    weights = pb.Attention(layers=1, heads=2, target_tokens=1, source_tokens=2, weights=[0.25, 0.75, 1, 0])
    response.hypotheses[1].attention.CopyFrom(weights)
    result = calls.generate("a").parse(response)
    best, second = result.hypotheses
    assert (result.text, result.finish_reason, result.target_tokens) == ("A", FinishReason.DEAD_END, 1)
    assert (result.log_probability, result.score, result.alignment, result.attention) == (0.0, None, (), None)
    assert (result.model, result.source_tokens, result.seed) == ("m", 2, 0)
    assert (result.best, result.tokens, result.source) == (best, (Token(4, "a", 0.0),), (Token(3, "</s>"),))
    assert (second.text, second.log_probability, second.score, second.alignment) == ("B", None, 0.0, (0,))
    assert second.attention is not None
    assert second.attention.tolist() == [[[[0.25, 0.75]], [[1.0, 0.0]]]]


def test_attention_is_indexed_and_averaged_by_layer_and_head() -> None:
    attention = Attention(2, 3, 4, 5, array("f", range(2 * 3 * 4 * 5)))
    assert (attention.shape, repr(attention)) == ((2, 3, 4, 5), "Attention(shape=(2, 3, 4, 5))")
    assert attention.matrix(1, 2) == [[100.0 + 5 * target + source for source in range(5)] for target in range(4)]
    assert attention.matrix(-1, -1) == attention.matrix(1, 2) == attention.mean(1, 2) == attention.tolist()[1][2]
    for layer, head in ((2, 0), (-3, 0), (0, 3), (0, -4)):
        with pytest.raises(IndexError):
            attention.matrix(layer, head)
    small = Attention(2, 3, 2, 2, array("f", range(24)))  # matrices start at 0, 4, 8, 12, 16, 20
    assert small.mean(layer=0) == [[4.0, 5.0], [6.0, 7.0]]
    assert small.mean(head=1) == small.mean() == [[10.0, 11.0], [12.0, 13.0]]


@pytest.mark.parametrize(
    ("hypotheses", "message"),
    [
        ([], "no hypothesis"),
        (
            [pb.Hypothesis(attention=pb.Attention(layers=1, heads=1, target_tokens=1, source_tokens=2, weights=[1]))],
            r"incomplete: attention: expected \(1, 1, 1, 2\) weights, got 1",
        ),
    ],
)
def test_an_incomplete_response_is_a_server_error(hypotheses: list[pb.Hypothesis], message: str) -> None:
    with pytest.raises(ServerError, match=message):
        calls.generate("a").parse(pb.GenerateResponse(hypotheses=hypotheses))


def test_an_unknown_finish_reason_of_a_newer_server_is_unspecified() -> None:
    response = pb.GenerateResponse(hypotheses=[pb.Hypothesis(finish_reason=99)])  # type: ignore[arg-type]
    assert calls.generate("a").parse(response).finish_reason is FinishReason.UNSPECIFIED


def test_a_score_call_expects_one_score_per_target() -> None:
    call = calls.score("a", ["b", [4]], model="m", alignment=True, attention=False)
    targets = [pb.Input(text="b"), pb.Input(token_ids=pb.TokenIds(ids=[4]))]
    assert call.request == pb.ScoreRequest(model="m", input=pb.Input(text="a"), targets=targets, alignment=True)
    with pytest.raises(ServerError, match="scored 1 of 2 targets"):
        call.parse(pb.ScoreResponse(scores=[pb.TargetScore()]))


def test_a_model_has_all_its_limits() -> None:
    call = calls.model("m")
    model = call.parse(pb.GetModelResponse(model=pb.Model(decoder_layers=3, heads=4, limits=pb.Limits(beam_size=8))))
    assert (model.decoder_layers, model.heads, model.limits) == (3, 4, Limits(beam_size=8))
    for field in pb.Limits.DESCRIPTOR.fields_by_name:
        model = call.parse(pb.GetModelResponse(model=pb.Model(limits=pb.Limits(**{field: 7}))))
        assert model.limits == Limits(**{field: 7})


def test_a_status_becomes_a_readable_exception() -> None:
    invalid = Fail(grpc.StatusCode.INVALID_ARGUMENT, "must be 1 to 47, got 0", field="options.max_new_tokens").status()
    error = from_status(invalid)
    assert isinstance(error, dragoman.InvalidArgumentError)
    assert str(error) == "options.max_new_tokens must be 1 to 47, got 0"
    assert error.violations[0].field == "options.max_new_tokens"
    invalid.message = "bad request"  # of another server
    assert str(from_status(invalid)) == "options.max_new_tokens: must be 1 to 47, got 0"
    full = from_status(Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after=0.25).status())
    assert isinstance(full, dragoman.ResourceExhaustedError)
    assert (str(full), full.retry_after) == ("the queue is full", 0.25)
    other = from_status(Fail(grpc.StatusCode.DATA_LOSS, "").status())
    assert (type(other), other.code) == (ServerError, "DATA_LOSS")
    assert str(other) == "the server answered DATA_LOSS without a message"


def test_details_that_are_damaged_or_absurd_are_borne() -> None:
    status = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after=1.0, field="x").status()
    for detail in status.details:
        detail.value = b"\xff"
    assert (str(from_status(status)), from_status(status).retry_after) == ("x full", None)
    absurd = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after=1.0).status()
    endless = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2**60))
    absurd.details[0].Pack(endless)
    assert from_status(absurd).retry_after == 2**60


@pytest.mark.parametrize(
    ("field", "one_input"),
    [
        ("input.text", True),
        (None, True),
        ("details.attention", True),  # the input is too long for it
        ("options.max_new_tokens", False),
        ("details.top_tokens", False),
    ],
)
def test_an_invalid_option_concerns_every_input(field: str | None, one_input: bool) -> None:
    error = from_status(Fail(grpc.StatusCode.INVALID_ARGUMENT, "no", field=field).status())
    assert concerns_one_input(error) is one_input
    assert not concerns_one_input(NotFoundError("no such model"))


def test_languages_belong_to_the_sources() -> None:
    ours = InLanguage("Hallo", "de")
    request = calls.generate(ours, source_language="fr", target_language="en").request
    assert request.input == pb.Input(text="Hallo", source_language="de", target_language="en")
    assert calls.generate([5, 6], target_language="en").request.input.target_language == "en"
    assert not calls.generate("Hallo").request.input.HasField("source_language")
    batch = Batch(["Bonjour", ours], source_language="fr", target_language="en").request
    assert batch is not None
    assert [source.source_language for source in batch.inputs] == ["fr", "de"]
    assert calls.tokenize("a", model="", side="source", source_language="fr").request.source_language == "fr"
    scored = calls.score("a", ["b"], model="", alignment=False, attention=False, target_language="en").request
    assert scored.input.target_language == "en"


def test_a_language_that_is_no_text() -> None:
    with pytest.raises(TypeError, match="target_language: expected a str, got int"):
        calls.generate("Hallo", target_language=5)
