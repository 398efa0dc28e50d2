"""Requests from Python values, and Python values from responses. Pure; both clients share it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar

from google.protobuf import duration_pb2

from dragoman.errors import InvalidArgumentError, ItemError, ServerError, from_status
from dragoman.results import FinishReason, ModelInfo, Piece, Result, Token
from dragoman.v1 import generation_pb2 as pb

Source: TypeAlias = str | Sequence[int]
"""What to generate from: a text, or the source token ids of one."""

Side = Literal["source", "target"]
_SIDES = {"source": pb.SIDE_SOURCE, "target": pb.SIDE_TARGET}
_INT32_MAX = 2**31 - 1

Answer = TypeVar("Answer")


class GenerateOptions(TypedDict, total=False):
    """The options of every kind of generation.

    model: the model to ask; "" for the server's default.
    max_new_tokens: tokens to generate at most; None for the model's limit.
    time_limit: seconds after which what has been generated so far is the answer; None for no limit.
    tokens: return the generated tokens as well.
    log_probabilities: return the tokens with their log-probabilities, and the sum.
    """

    model: str
    max_new_tokens: int | None
    time_limit: float | None
    tokens: bool
    log_probabilities: bool


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """A call of the service: the method's name, its request, and how to read its response."""

    method: str
    request: Any
    parse: Callable[[Any], Answer]


def generate(source: Source, **options: Any) -> Call[Result]:
    """Generate. Takes GenerateOptions.

    Raises:
        ValueError: the text holds a lone surrogate, or a number does not fit its field.
        TypeError: the source is neither text nor ids, or there is no such option.
    """
    return Call("Generate", pb.GenerateRequest(input=_input(source), **_options(**options)), _result)


def generate_stream(source: Source, **options: Any) -> Call[tuple[Piece, Result | None]]:
    """GenerateStream; takes and raises what `generate` does. The last message has the result."""
    return Call("GenerateStream", pb.GenerateRequest(input=_input(source), **_options(**options)), _piece)


def generate_batch(sources: Iterable[Source], **options: Any) -> Call[list[Result | ItemError]]:
    """GenerateBatch; takes GenerateOptions. A source that cannot be sent is left out and has its error in the answer.

    Raises:
        ValueError: an option does not fit its field.
        TypeError: a source is neither text nor ids, or there is no such option.
    """
    inputs: list[pb.Input] = []
    answers: list[Result | ItemError | None] = []
    for index, source in enumerate(sources):
        built = input_or_error(index, source)
        if isinstance(built, ItemError):
            answers.append(built)
        else:
            answers.append(None)
            inputs.append(built)

    def parse(response: pb.GenerateBatchResponse) -> list[Result | ItemError]:
        if len(response.items) != len(inputs):
            raise ServerError(f"the server answered {len(response.items)} of {len(inputs)} inputs", code="INTERNAL")
        items = iter(response.items)
        return [_item(index, next(items)) if answer is None else answer for index, answer in enumerate(answers)]

    return Call("GenerateBatch", pb.GenerateBatchRequest(inputs=inputs, **_options(**options)), parse)


def generate_many(**options: Any) -> Callable[[pb.Input], Call[Result]]:
    """Calls of Generate that share GenerateOptions, which are checked here, once. Raises what `generate` does."""
    shared = _options(**options)
    return lambda input_: Call("Generate", pb.GenerateRequest(input=input_, **shared), _result)


def tokenize(text: str, *, model: str, side: Side) -> Call[list[Token]]:
    check_text(text, "text")
    request = pb.TokenizeRequest(model=model, text=text, side=_side(side))
    return Call("Tokenize", request, lambda response: list(_tokens(response.tokens)))


def detokenize(ids: Sequence[int], *, model: str, side: Side) -> Call[str]:
    request = pb.DetokenizeRequest(model=model, token_ids=_token_ids(ids), side=_side(side))
    return Call("Detokenize", request, lambda response: str(response.text))


def models() -> Call[list[ModelInfo]]:
    return Call("ListModels", pb.ListModelsRequest(), lambda response: [_model(each) for each in response.models])


def model(name: str) -> Call[ModelInfo]:
    check_text(name, "model")
    return Call("GetModel", pb.GetModelRequest(model=name), lambda response: _model(response.model))


def input_or_error(index: int, source: Source) -> pb.Input | ItemError:
    """The input, or the error of the one among many that cannot be sent.

    Raises:
        TypeError: the source is neither text nor ids: a mistake of the program, not of its data.
    """
    try:
        return _input(source)
    except ValueError as error:
        return ItemError(index, InvalidArgumentError(str(error)))


def check_text(text: str, name: str) -> None:
    """Refuses what UTF-8, and so protobuf, cannot carry.

    Raises:
        ValueError: there is a lone surrogate; the message shows the text and gives the position, counted from 0.
        TypeError: `text` is no str.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        # os.fsdecode and errors="surrogateescape" turn undecodable bytes into these.
        byte = f" (byte 0x{code - 0xDC00:02X}, which is not valid UTF-8)" if 0xDC80 <= code <= 0xDCFF else ""
        shown = text if len(text) <= 60 else text[max(0, error.start - 30) : error.start + 30]
        raise ValueError(
            f"{name}: {shown!a} has the lone surrogate U+{code:04X} at position {error.start}{byte} and cannot be sent"
        ) from None


def _input(source: Source) -> pb.Input:
    if isinstance(source, str):
        check_text(source, "text")
        return pb.Input(text=source)
    return pb.Input(token_ids=_token_ids(source))


def _token_ids(ids: Sequence[int]) -> pb.TokenIds:
    if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
        raise TypeError(f"expected a text or token ids, got {type(ids).__name__}")
    return pb.TokenIds(ids=[_int32(each, f"token id {index}") for index, each in enumerate(ids)])


def _int32(value: Any, name: str) -> int:
    try:
        number = value.__index__()  # integers of every kind (NumPy's too), but no floats
    except AttributeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    if not -_INT32_MAX - 1 <= number <= _INT32_MAX:
        raise ValueError(f"{name}: {number} does not fit in 32 bits")
    return int(number)


def _options(
    *,
    model: str = "",
    max_new_tokens: int | None = None,
    time_limit: float | None = None,
    tokens: bool = False,
    log_probabilities: bool = False,
) -> dict[str, Any]:
    check_text(model, "model")
    options = pb.GenerationOptions()
    if max_new_tokens is not None:
        options.max_new_tokens = _int32(max_new_tokens, "max_new_tokens")
    if time_limit is not None:
        options.time_limit.CopyFrom(_duration(time_limit))
    details = pb.Details(tokens=tokens, log_probabilities=log_probabilities)
    return {"model": model, "options": options, "details": details}


def _duration(seconds: float) -> duration_pb2.Duration:
    if not math.isfinite(seconds) or abs(seconds) > 315_576_000_000:  # the range of a Duration, 10,000 years
        raise ValueError(f"time_limit: expected seconds, got {seconds}")
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _side(side: Side) -> pb.Side:
    if side not in _SIDES:
        raise ValueError(f'side: expected "source" or "target", got {side!r}')
    return _SIDES[side]


def _item(index: int, item: pb.BatchItem) -> Result | ItemError:
    if item.WhichOneof("result") == "error":
        return ItemError(index, from_status(item.error))
    return _result(item.response)


def _result(response: pb.GenerateResponse) -> Result:
    if not response.hypotheses:
        raise ServerError("the server's answer has no hypothesis", code="INTERNAL")
    best = response.hypotheses[0]
    return Result(
        text=best.text,
        finish_reason=_finish_reason(best.finish_reason),
        source_tokens=response.source_tokens,
        target_tokens=best.target_tokens,
        model=response.model,
        tokens=_tokens(best.tokens),
        log_probability=best.log_probability if best.HasField("log_probability") else None,
    )


def _piece(message: pb.GenerateStreamResponse) -> tuple[Piece, Result | None]:
    piece = Piece(message.text, _tokens(message.tokens))
    return piece, _result(message.final) if message.HasField("final") else None


def _finish_reason(value: int) -> FinishReason:
    try:
        return FinishReason(pb.FinishReason.Name(value).removeprefix("FINISH_REASON_"))
    except ValueError:
        return FinishReason.UNSPECIFIED


def _tokens(tokens: Iterable[pb.Token]) -> tuple[Token, ...]:
    return tuple(
        Token(each.id, each.text, each.log_probability if each.HasField("log_probability") else None) for each in tokens
    )


def _model(message: pb.Model) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        version=message.version,
        description=message.description,
        license=message.license,
        precision=message.precision,
        device=message.device,
        max_source_tokens=message.max_source_tokens,
        max_target_tokens=message.max_target_tokens,
        source_vocabulary_size=message.source_vocabulary_size,
        target_vocabulary_size=message.target_vocabulary_size,
        parameters=message.parameters,
        quality=dict(message.quality),
        examples=tuple(message.examples),
    )
