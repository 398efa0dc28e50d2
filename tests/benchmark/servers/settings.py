"""How the servers over CTranslate2 may be set up, and which of that is tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.benchmark.contenders import thread_settings

BATCHES = (8, 32, 64)
DELAY = 0.002  # seconds, tried with the largest batch: without one, a batch is what came while the last one ran


@dataclass(frozen=True)
class Setting:
    """One way to run a server.

    Attributes:
        workers: batches at the same time: Triton's instances of the model, or CTranslate2's own workers.
        threads: of each of them.
        batch: texts in a batch at most.
        delay: seconds that a batch that is not full waits for more.
        kernels: variables by which CTranslate2 chooses its kernels.
    """

    workers: int
    threads: int
    batch: int
    delay: float = 0.0
    kernels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{self.workers} x {self.threads} threads"]
        if self.batch > 1:
            words.append(f"batches of {self.batch}")
            words.append(f"waiting {1000 * self.delay:g} ms" if self.delay else "no waiting")
        return ", ".join([*words, *(f"{name}={value}" for name, value in self.kernels.items())])


def batching_settings(
    cores: int, kernels: Mapping[str, str], batches: Sequence[int] = BATCHES, delay: float = DELAY
) -> list[Setting]:
    """Of a server that batches: all batches without a delay, and the largest with it, too."""
    choices = [(batch, 0.0) for batch in batches] + ([(max(batches), delay)] if delay else [])
    return [
        Setting(workers, threads, batch, delay, kernels)
        for workers, threads in thread_settings(cores)
        for batch, delay in choices
    ]


def single_settings(cores: int, kernels: Mapping[str, str]) -> list[Setting]:
    """Of a server that translates each text by itself."""
    return [Setting(workers, threads, 1, kernels=kernels) for workers, threads in thread_settings(cores)]
