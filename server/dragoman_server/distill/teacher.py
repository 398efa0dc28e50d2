"""A teacher: a bundle, and how it searches for its candidates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.bulk.backend import in_order, longest_first
from dragoman.bulk.errors import BulkError
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import OutOfMemoryError
from dragoman_server.core.requests import GenerationResult
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.distill.choose import Candidate, candidate
from dragoman_server.messages.default_options import BEAM, SAMPLING
from dragoman_server.offline.model import OfflineModel
from dragoman_server.offline.scored import Ids
from dragoman_server.offline.tickets import Answer, Ticket

BEAM_SIZE = 5  # of a bundle without defaults of its own; Kim & Rush 2016, section 4.1


@dataclass(frozen=True, slots=True)
class SearchWishes:
    """How to search for candidates; None for the bundle's own default.

    Attributes:
        candidates: Candidates of each source; None for all of the beam.
    """

    candidates: int | None = 1
    beam_size: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    max_new_tokens: int | None = None


class Teacher:
    """A loaded teacher.

    Args:
        path: The bundle's directory.
        config: The server's options.
        languages: An input without text, with the languages of all sources.

    Raises:
        BulkError: The bundle, the device, a language or an option can't be used.
    """

    def __init__(self, path: Path, config: ServerConfig, languages: pb.Input, wishes: SearchWishes) -> None:
        self.model = OfflineModel(path, config, languages)
        self.search = self._search(wishes)

    def begin(self, sources: Sequence[Ids]) -> Ticket:
        """Asks for the answers to sources, which are computed by falling length."""
        order = longest_first([len(ids) for ids in sources])
        return self.model.engines.submit(self.model.requests([sources[index] for index in order], self.search))

    def answers(self, sources: Sequence[Ids], ticket: Ticket, should_stop: Callable[[], bool]) -> list[Answer]:
        """Returns the answers to sources.

        Args:
            ticket: What `begin` returned for them.

        Raises:
            StoppedError: `should_stop` returned True.
            BulkError: An engine has failed.
        """
        order = longest_first([len(ids) for ids in sources])
        return in_order(self.model.engines.wait(ticket, should_stop), order)

    def candidates(self, sources: Sequence[Ids], answers: Sequence[Answer]) -> list[list[Candidate] | str]:
        """Returns the candidates of each source, best first, or why there are none.

        Raises:
            BulkError: An engine has failed.
        """
        results = [answer for answer in answers if isinstance(answer, GenerationResult)]
        texts = iter(self.model.decode([hypothesis.ids for result in results for hypothesis in result.hypotheses]))
        found: list[list[Candidate] | str] = []
        for ids, answer in zip(sources, answers, strict=True):
            if isinstance(answer, GenerationResult):
                most = self.search.max_new_tokens
                found.append([candidate(result, next(texts), ids, most) for result in answer.hypotheses])
            elif isinstance(answer, OutOfMemoryError):
                found.append("the device has not enough memory for it")
            else:
                raise BulkError(f"{self.model.manifest.name}: {answer}")
        return found

    def _search(self, wishes: SearchWishes) -> SearchOptions:
        own = self.model.defaults.options
        default = own.beam_size if own.HasField("beam_size") else BEAM_SIZE
        beam = wishes.beam_size or max(default, wishes.candidates or 1)
        candidates = wishes.candidates or beam
        if candidates > beam:
            raise BulkError(f"--candidates and --keep can be at most --beam-size, which is {beam}")
        early = wishes.early_stopping
        if early is None and candidates > 1 and not (own.HasField("stopping") or own.HasField("early_stopping")):
            early = True  # else it goes on until the last candidate can't be beaten either: four times as long
        options = pb.GenerationOptions(
            length_penalty=wishes.length_penalty,
            early_stopping=early,
            max_new_tokens=wishes.max_new_tokens,
            use_shortlist=False,  # a student should learn from all that the teacher knows
        )
        if beam == 1:
            return self.model.search(options, without=(*BEAM, *SAMPLING, "num_hypotheses"))
        options.beam_size, options.num_hypotheses = beam, candidates
        return self.model.search(options)
