"""Options of requests to a model of letters, and the search that they become."""

from typing import Any

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.messages.generation_options import ResponseDetails, read_options
from dragoman_server.messages.limits import request_limits
from dragoman_server.messages.token_ids import TargetEncoder
from tests.support.fake_engines import MAX_TARGET, letters_bundle

BUNDLE = letters_bundle()
LIMITS = request_limits(ServerConfig(max_beam_size=6, max_hypotheses=8), 64, BUNDLE.manifest.shape)
TARGET = TargetEncoder(BUNDLE.target_tokenizer, BUNDLE.manifest.tokens, MAX_TARGET)
SIZE = BUNDLE.manifest.shape.target_vocabulary
PAD, UNKNOWN, BEGIN, END, A, B, C = range(7)
# Names of the options of a search; the time limit belongs to the call, see test_api_requests.py.
OPTIONS = {field.name for field in pb.GenerationOptions.DESCRIPTOR.fields} - {"time_limit"}


def text(content: str) -> pb.Input:
    return pb.Input(text=content)


def ids(*tokens: int) -> pb.Input:
    return pb.Input(token_ids=only(*tokens))


def only(*tokens: int) -> pb.TokenIds:
    return pb.TokenIds(ids=tokens)


async def search(options: dict[str, Any], limits: pb.Limits = LIMITS) -> SearchOptions:
    return await read_options(pb.GenerationOptions(**options), ResponseDetails(), TARGET, limits)


BEAM = {"beam_size": 4}
SAMPLE = {"sample": True}
NONE = pb.LENGTH_NORMALIZATION_NONE


def described(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={str(value)[:20].strip()}" for name, value in options.items()).replace("\n", " ")
