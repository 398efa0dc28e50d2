"""The servers that are measured."""

import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dragoman.local import LocalServer
from server.bundle.load import Bundle
from server.cpu import usable_cpus
from tests.benchmark.servers.settings import Setting, batching_settings, single_settings
from tests.benchmark.servers.starting import MODEL, start_asyncio, start_triton
from tests.benchmark.servers.triton_setup import Triton

NAMES = {
    "dragoman": "Dragoman",
    "dragoman-infer": "Dragoman, with Triton's protocol",
    "triton": "Triton, dynamic batching",
    "batching": "asyncio, micro-batches",
    "single": "asyncio, one by one",
}
"""Of systems; all but Dragoman's translate with CTranslate2."""

OURS = "dragoman"
DEFAULTS = "its defaults"


class Served(Protocol):
    """A server that runs."""

    port: int
    process: "subprocess.Popen[bytes]"


@dataclass(frozen=True)
class System:
    """A server that can be started.

    Attributes:
        name: of NAMES.
        protocol: of tests.benchmark.servers.protocols.PROTOCOLS.
        model: the model's name there.
        settings: that may be its best; none for one that is measured as it comes.
        start: in a setting; None for as it comes.
    """

    name: str
    protocol: str
    model: str
    settings: list[Setting]
    start: Callable[[Setting | None], AbstractContextManager[Served]]


def systems(
    names: list[str],
    bundle: Bundle,
    model: Path,
    kernels: dict[str, str],
    compute_type: str,
    triton: Triton | None,
    serve: list[str],
    batches: Sequence[int],
    delay: float,
) -> list[System]:
    """Those of `names`.

    Args:
        model: CTranslate2's.
        kernels: variables with which it is fastest.
        triton: not None where one of the names needs it.
        serve: more arguments of dragoman-serve.
        batches, delay: that are tried; see batching_settings.
    """
    cores = usable_cpus()
    batching, single = batching_settings(cores, kernels, batches, delay), single_settings(cores, kernels)

    def ours(_: Setting | None) -> LocalServer:
        return LocalServer("--bundle", str(bundle.path), "--log-requests", "failed", *serve)

    def plain(setting: Setting | None) -> AbstractContextManager[Served]:
        assert setting is not None
        return start_asyncio(model, compute_type, setting)

    def theirs(setting: Setting | None) -> AbstractContextManager[Served]:
        assert setting is not None
        assert triton is not None
        return start_triton(triton, model, compute_type, setting)

    known = [
        System("dragoman", "generate", bundle.manifest.name, [], ours),
        System("dragoman-infer", "infer", bundle.manifest.name, [], ours),
        System("triton", "infer", MODEL, batching, theirs),
        System("batching", "generate", MODEL, batching, plain),
        System("single", "generate", MODEL, single, plain),
    ]
    return [system for system in known if system.name in names]
