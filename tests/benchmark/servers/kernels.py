"""Which of CTranslate2's kernels are the fastest here, for all servers that use it."""

from contextlib import ExitStack
from pathlib import Path

from server.bundle.load import Bundle
from server.cpu import usable_cpus
from tests.benchmark.effort import Notify
from tests.benchmark.translators import KERNELS, Translators
from tests.benchmark.workload import Workload


def fastest_kernels(
    bundle: Bundle, converted: Path, workload: Workload, seconds: float, notify: Notify
) -> dict[str, str]:
    """The variables that choose them.

    Raises:
        ActorError: CTranslate2 can't run the model.
    """
    with ExitStack() as stack:
        return KERNELS[Translators(stack, bundle, converted, workload, usable_cpus(), seconds, notify).kernels]
