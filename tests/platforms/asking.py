"""Serves the model that ships, asks it for all that the API has, and prints the answers as JSON.

    python -I tests/platforms/asking.py WORD...

Not imported but run, by `tests.platforms.bounds`, with Pythons beside which there is the package and nothing of tests.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from dragoman import Client, ItemError, Result
from dragoman.local import LocalServer

FEW = 50  # words for what takes longer
SERVICE = "dragoman.v1.GenerationService"


def texts(answers: Iterable[Result | ItemError]) -> list[list[str]]:
    """The hypotheses of each answer, or why there is none."""
    return [[str(each)] if isinstance(each, ItemError) else [h.text for h in each.hypotheses] for each in answers]


def ask(client: Client, words: list[str]) -> dict[str, Any]:
    """What the client gets for each word, by kind of call."""
    few = words[:FEW]
    plain = [client.generate(word) for word in words]
    starts = [answer.text.split(" ")[0] for answer in plain]
    ids = sorted({token.id for word in few[:5] for token in client.generate(word, tokens=True).tokens[:-1]})
    streamed = []
    for word in few:
        with client.generate_stream(word) as pieces:
            streamed.append(["".join(piece.text for piece in pieces)])
    return {
        "unary calls": texts(plain),
        "calls in flight": texts(client.generate_many(words)),
        "a batch": texts(client.generate_batch(words)),
        "streams": streamed,
        "beam search": texts(client.generate(word, beam_size=4, num_hypotheses=3) for word in few),
        "samples": texts(client.generate(word, sample=True, top_p=0.9, seed=7) for word in few),
        "prefixes": texts(client.generate(word, prefix=start) for word, start in zip(few, starts, strict=False)),
        "short lists": texts(client.generate(word, vocabulary=ids) for word in few),
        # To three places: what is scored beside a target may change the seventh.
        "scores": [
            [f"{score.log_probability:.3f}" for score in client.score(word, [answer.text]).scores]
            for word, answer in zip(few, plain, strict=False)
        ],
        "health": [[client.health()]],
    }


def reflected(address: str) -> list[list[str]]:
    """The methods of the service, as reflection tells them."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        file = database.FindFileContainingSymbol(SERVICE)
        return [[method.name for service in file.service for method in service.method]]


def commands(server: LocalServer, words: list[str]) -> list[list[str]]:
    """What the command says, where that is the same for all releases of what draws it."""
    said = []
    at = ["--address", server.address]
    for show, arguments in (
        (False, ["--help"]),
        (True, ["generate", *at, "-n", "2", "--beam-size", "2", *words[:3]]),
        (True, ["score", *at, words[0], "AH", "AE"]),
        (True, ["health", *at]),
        (False, ["top", "--once", f"{server.host}:{server.metrics_port}"]),
    ):
        command = [str(Path(sys.executable).with_name("dragoman")), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        said.append([arguments[0], str(done.returncode), done.stdout if show else "", done.stderr[-500:]])
    return said


def main() -> None:
    """Serves, asks, prints."""
    words = sys.argv[1:]
    with LocalServer() as server:
        with Client(server.address) as client:
            answers = ask(client, words)
        answers["reflection"] = reflected(server.address)
        answers["commands"] = commands(server, words)
        answers["exit status"] = [[str(server.stop())]]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
