"""torch.compile for the layers of a model, each on its own, so that equal layers share what is compiled.

What PyTorch needs for it takes seconds to import, so that only runs that compile do so.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dragoman_training.errors import TrainingError
from dragoman_training.model import Transformer

CPU_WARNING = (
    "warning: training.compile: steps take longer on a CPU with it, where layers are computed by faster code otherwise"
)


def compile_layers(model: Transformer, backend: str = "inductor") -> None:
    """Makes the layers compile themselves when they first run, in place, for batches of any shape."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.compile(dynamic=True, backend=backend)


@contextmanager
def without_compiling() -> Iterator[None]:
    """Computes compiled layers as if they were not: few evaluations do not repay more compiling."""
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def finding_compilers() -> Iterator[None]:
    """Turns what PyTorch says of a missing or failing compiler into a TrainingError."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    try:
        yield
    except (TorchDynamoException, InductorError, InvalidCxxCompiler) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise TrainingError(f"training.compile: compiling failed ({reason}); set it to false") from error
