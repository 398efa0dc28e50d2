"""Serves the shipped model, uses every feature of the API, and prints the answers as JSON.

    python -I tests/platforms/asking.py WORD...

`tests.platforms.bounds` runs this as a script, with Pythons that have the package installed but not the tests.
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
from dragoman_server.models.repository import SHIPPED_MODELS

FEW = 50  # words for the slower features
SERVICE = "dragoman.v1.GenerationService"


def texts(answers: Iterable[Result | ItemError]) -> list[list[str]]:
    """Returns the hypotheses of each answer, or its error."""
    return [[str(item)] if isinstance(item, ItemError) else [h.text for h in item.hypotheses] for item in answers]


def ask(client: Client, words: list[str]) -> dict[str, Any]:
    """Returns the answers to all words, by kind of call."""
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
        "shortlists": texts(client.generate(word, vocabulary=ids) for word in few),
        # Three decimals: the seventh may depend on the other targets of a batch.
        "scores": [
            [f"{score.log_probability:.3f}" for score in client.score(word, [answer.text]).scores]
            for word, answer in zip(few, plain, strict=False)
        ],
        "health": [[client.health()]],
    }


def reflected(address: str) -> list[list[str]]:
    """Returns the methods of the service that reflection lists."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        file = database.FindFileContainingSymbol(SERVICE)
        return [[method.name for service in file.service for method in service.method]]


def commands(server: LocalServer, words: list[str]) -> list[list[str]]:
    """Returns the output of client commands, if it does not depend on the release of the terminal libraries."""
    outputs = []
    address = ["--address", server.address]
    for compared, arguments in (
        (False, ["--help"]),
        (True, ["generate", *address, "-n", "2", "--beam-size", "2", *words[:3]]),
        (True, ["score", *address, words[0], "AH", "AE"]),
        (True, ["health", *address]),
        (False, ["top", "--once", f"{server.host}:{server.metrics_port}"]),
    ):
        command = [str(Path(sys.executable).with_name("dragoman")), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        outputs.append([arguments[0], str(done.returncode), done.stdout if compared else "", done.stderr[-500:]])
    return outputs


def main() -> None:
    """Prints all answers."""
    words = sys.argv[1:]
    with LocalServer("--bundle", str(SHIPPED_MODELS / "g2p-en" / "1")) as server:
        with Client(server.address) as client:
            answers = ask(client, words)
        answers["reflection"] = reflected(server.address)
        answers["commands"] = commands(server, words)
        answers["exit status"] = [[str(server.stop())]]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
