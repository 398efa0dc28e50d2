"""The calls of the service. Pure; both clients share it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from dragoman import answers, fields, options
from dragoman.errors import InvalidArgumentError, ItemError
from dragoman.fields import Side, Source, Target
from dragoman.results import ModelInfo, Piece, RepositoryStatus, Result, ScoreResult, Token, VersionStatus
from dragoman.v1 import admin_pb2
from dragoman.v1 import generation_pb2 as pb

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """A call of a service: the method's name, its request, and how to read its response."""

    method: str
    request: Any
    parse: Callable[[Any], Answer]
    service: Literal["generation", "admin"] = "generation"


def generate(source: Source, **given: Any) -> Call[Result]:
    """Generate. Takes GenerateOptions.

    Raises:
        ValueError: a text holds a lone surrogate, or a number does not fit its field.
        TypeError: the source is neither text nor ids, or there is no such option.
    """
    request = pb.GenerateRequest(input=fields.input_(source), **options.of_request(**given))
    return Call("Generate", request, answers.result)


def generate_stream(source: Source, **given: Any) -> Call[tuple[Piece, Result | None]]:
    """GenerateStream; takes and raises what `generate` does. The last message has the result."""
    request = pb.GenerateRequest(input=fields.input_(source), **options.of_request(**given))
    return Call("GenerateStream", request, answers.piece)


def generate_many(**given: Any) -> Callable[[pb.Input], Call[Result]]:
    """Calls of Generate that share GenerateOptions, which are checked here, once. Raises what `generate` does."""
    shared = options.of_request(**given)
    return lambda input_: Call("Generate", pb.GenerateRequest(input=input_, **shared), answers.result)


def score(
    source: Source, targets: Iterable[Target], *, model: str, alignment: bool, attention: bool
) -> Call[ScoreResult]:
    """Score; raises what `generate` does."""
    request = pb.ScoreRequest(
        model=fields.text(model, "model"),
        input=fields.input_(source),
        targets=fields.inputs(targets, "targets"),
        alignment=fields.flag(alignment, "alignment"),
        attention=fields.flag(attention, "attention"),
    )
    return Call("Score", request, lambda response: answers.scores(response, len(request.targets)))


def tokenize(text: str, *, model: str, side: Side) -> Call[list[Token]]:
    request = pb.TokenizeRequest(
        model=fields.text(model, "model"), text=fields.text(text, "text"), side=fields.side(side)
    )
    return Call("Tokenize", request, lambda response: list(answers.tokens(response.tokens)))


def detokenize(ids: Sequence[int], *, model: str, side: Side) -> Call[str]:
    request = pb.DetokenizeRequest(
        model=fields.text(model, "model"),
        token_ids=pb.TokenIds(ids=fields.token_ids(ids, "token_ids")),
        side=fields.side(side),
    )
    return Call("Detokenize", request, lambda response: str(response.text))


def models() -> Call[list[ModelInfo]]:
    return Call("ListModels", pb.ListModelsRequest(), lambda response: list(map(answers.model, response.models)))


def model(name: str) -> Call[ModelInfo]:
    request = pb.GetModelRequest(model=fields.text(name, "model"))
    return Call("GetModel", request, lambda response: answers.model(response.model))


def load_model(name: str, *, again: bool) -> Call[list[VersionStatus]]:
    request = admin_pb2.LoadModelRequest(model=fields.text(name, "name"), again=fields.flag(again, "again"))
    return Call("LoadModel", request, _versions, "admin")


def unload_model(name: str) -> Call[list[VersionStatus]]:
    return Call("UnloadModel", admin_pb2.UnloadModelRequest(model=fields.text(name, "name")), _versions, "admin")


def reload_repository() -> Call[RepositoryStatus]:
    return Call("ReloadRepository", admin_pb2.ReloadRepositoryRequest(), _repository, "admin")


def repository_status() -> Call[RepositoryStatus]:
    return Call("GetStatus", admin_pb2.GetStatusRequest(), _repository, "admin")


def _versions(response: admin_pb2.LoadModelResponse | admin_pb2.UnloadModelResponse) -> list[VersionStatus]:
    return list(map(answers.version, response.versions))


def _repository(response: admin_pb2.ReloadRepositoryResponse | admin_pb2.GetStatusResponse) -> RepositoryStatus:
    return answers.repository(response.status)


def input_or_error(index: int, source: Source) -> pb.Input | ItemError:
    """The input, or the error of the one among many that cannot be sent.

    Raises:
        TypeError: the source is neither text nor ids: a mistake of the program, not of its data.
    """
    try:
        return fields.input_(source)
    except ValueError as error:
        return ItemError(index, InvalidArgumentError(str(error)))
