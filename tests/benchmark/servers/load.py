"""The load generator for servers of either protocol."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from tests.benchmark.servers.protocols import PROTOCOLS
from tests.support.load import LoadGenerator


class ServerLoad(LoadGenerator):
    """Asks for texts, over and over; the same for every server but for the message around a text.

    Args:
        address: host and port of the server.
        server_pid: its process.
        protocol: of PROTOCOLS.
        model: its name there.
        texts, limits: what is asked.
        tokenizer: file of the one that answers are counted with, after the clock has stopped.
        ends: whether an answer has an end token that counts.
    """

    def __init__(
        self,
        address: tuple[str, int],
        server_pid: int,
        protocol: str,
        model: str,
        texts: Sequence[str],
        limits: Sequence[int],
        tokenizer: Path,
        ends: bool,
    ) -> None:
        self._protocol = PROTOCOLS[protocol]
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._ends = ends
        self._lengths: dict[str, int] = {}
        super().__init__(address, server_pid, self._protocol.path, self._protocol.requests(model, texts, limits))

    def texts(self, concurrency: int) -> list[str | None]:
        """The answer to each text; None where there was none."""
        return [None if answer is None else self._protocol.text(answer) for answer in self.answers(concurrency)]

    def count(self, answer: bytes) -> tuple[int, int]:
        text = self._protocol.text(answer)
        if text not in self._lengths:
            self._lengths[text] = len(self._tokenizer.encode(text, add_special_tokens=self._ends).ids)
        return self._lengths[text], 1
