"""The weights that a server has loaded move to huge pages, in whichever process they are."""

import psutil
import pytest

from dragoman import Client
from dragoman_server.models.repository import SHIPPED_MODELS
from tests.conftest import StartServer
from tests.support.memory import has_huge_pages, huge_megabytes
from tests.support.waiting import until

DE_EN = SHIPPED_MODELS / "de-en" / "1"
WEIGHTS = 20.0  # MB of 23; what was there before the load, such as the heap of the interpreter, does not move


@pytest.mark.skipif(not has_huge_pages(), reason="needs Linux 6.1 with transparent huge pages")
@pytest.mark.parametrize("workers", [0, 2])
def test_weights_move_to_huge_pages(start_server: StartServer, workers: int) -> None:
    server = start_server("--bundle", str(DE_EN), *(("--workers", str(workers)) if workers else ()))
    process = psutil.Process(server.process.pid)
    holders = [child.pid for child in process.children()] if workers else [process.pid]
    assert len(holders) == max(1, workers)
    until(lambda: min(map(huge_megabytes, holders)) > WEIGHTS, lambda: str([*map(huge_megabytes, holders)]))
    with Client(server.address) as client:
        assert client.generate("Guten Morgen!").hypotheses[0].text == "Good morning."
