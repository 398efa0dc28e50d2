"""Engines in this process as the backend of `dragoman bulk`, which loads this module by its name."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.bulk.backend import Answer, cut_at_limit, dead_end, in_order, longest_first
from dragoman.bulk.errors import BulkError, StoppedError
from dragoman.bulk.text_lines import never
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.errors import OutOfMemoryError
from dragoman_server.core.requests import CarriedText, FinishReason, GenerationResult, HypothesisResult
from dragoman_server.messages.generation_options import reseeded
from dragoman_server.messages.languages import FIELDS
from dragoman_server.offline import tickets
from dragoman_server.offline.model import OfflineModel, identify
from dragoman_server.offline.scored import Ids
from dragoman_server.offline.setup import offline_config, prepare_process
from dragoman_server.offline.tickets import Ticket

WINDOWS_AHEAD = 2  # the engines have one to go on with while the answers to the other are written


@dataclass(slots=True)
class Asked:
    """A window whose sources the engines have.

    Attributes:
        places: Place of each source among the distinct ones, or what is wrong with it.
        order: Place of each request that the engines have, those with the longest sources first.
        ticket: The requests.
        carried: What skips the model of the sources at some places, and the ids of what is left of them.
    """

    places: list[int | str]
    order: list[int]
    ticket: Ticket
    carried: dict[int, tuple[CarriedText, Ids]]


class InProcess:
    """A bundle in this process.

    Args:
        bundle: Directory of the bundle.
        options: How to search.
        languages: An input without text, with the languages of all sources.
        machine: Options of `dragoman-serve` for the engines, None for the default.
        cores: CPU cores that the engines may use; None for all of this process.
        should_stop: Whether the work should stop.

    Raises:
        BulkError: The bundle, the device, an option or a language can't be used.
        ValueError: An option of the machine is out of range.
    """

    def __init__(
        self,
        bundle: Path,
        options: pb.GenerationOptions,
        languages: pb.Input,
        machine: Mapping[str, Any],
        cores: int | None = None,
        should_stop: Callable[[], bool] = never,
    ) -> None:
        self._should_stop = should_stop
        prepare_process()
        self._name = identify(bundle)
        self._model = OfflineModel(bundle, offline_config(**machine), languages, cores)
        try:
            for side, name in FIELDS.items():
                if languages.HasField(name) and not self._model.languages.HasField(name):
                    raise BulkError(f"--{name.replace('_', '-')}: the model has no choice of {side} languages")
            self._search = self._model.search(options)
        except BulkError:
            self._model.close()
            raise
        self._own_seeds = self._search.sampling is not None and not options.HasField("seed")
        self._length_chosen = options.HasField("max_new_tokens")
        self._sources = self._expected = 0

    @property
    def model(self) -> str:
        return self._name

    def measure(self) -> tuple[int, int]:
        """See Backend. A part of the answers is taken for the same part of the sources, which may be repeated."""
        engines = self._model.engines
        return int(self._sources * min(engines.answered / max(self._expected, 1), 1.0)), engines.tokens

    def answers(self, windows: Iterable[Sequence[str]]) -> Iterator[list[Answer]]:
        """Yields the answers to the sources of each window; see Backend."""
        asked: deque[Asked] = deque()
        for window in windows:
            asked.append(self._ask(window))
            if len(asked) == WINDOWS_AHEAD:
                yield self._answers(asked.popleft())
        while asked:
            yield self._answers(asked.popleft())

    def close(self) -> None:
        self._model.close()

    def _ask(self, window: Sequence[str]) -> Asked:
        """Gives the sources of a window to the engines, each text once unless each has a seed of its own."""
        texts = list(window) if self._own_seeds else list(dict.fromkeys(window))
        ids: list[Ids] = []
        found: list[int | str] = []
        carried: dict[int, tuple[CarriedText, Ids]] = {}
        taken = self._model.take_unreadable(texts)
        read = [text if one is None else one.left or text for text, one in zip(texts, taken, strict=True)]
        for encoded, one in zip(self._model.encode(read), taken, strict=True):
            found.append(encoded if isinstance(encoded, str) else len(ids))
            if not isinstance(encoded, str):
                if one is not None:
                    carried[len(ids)] = one, encoded
                ids.append(encoded)
        places = found if self._own_seeds else list(map(dict(zip(texts, found, strict=True)).__getitem__, window))
        order = longest_first([len(one) for one in ids])
        sorted_ids = [ids[index] for index in order]
        requests = self._model.requests(sorted_ids, self._search)
        if self._own_seeds:
            requests = [replace(request, search=reseeded(request.search)) for request in requests]
        self._sources += len(window)
        self._expected += len(requests)
        return Asked(places, order, self._model.engines.submit(requests), carried)

    def _answers(self, asked: Asked) -> list[Answer]:
        """Waits for the answers to a window."""
        if self._should_stop():
            raise StoppedError
        found = in_order(self._model.engines.wait(asked.ticket, self._should_stop), asked.order)
        best = {place: one.hypotheses[0] for place, one in enumerate(found) if isinstance(one, GenerationResult)}
        decoded = self._model.decode([hypothesis.ids for hypothesis in best.values()])
        pairs = zip(best.items(), decoded, strict=True)
        texts = {place: text[: hypothesis.characters] for (place, hypothesis), text in pairs}
        places = [place for place in asked.carried if place in texts]
        carried, written = [asked.carried[place] for place in places], [texts[place] for place in places]
        whole = self._model.put_back(carried, [best[place] for place in places], written)
        texts |= zip(places, whole, strict=True)
        answers = [self._answer(answer, texts.get(place, "")) for place, answer in enumerate(found)]
        return [Answer(None, place) if isinstance(place, str) else answers[place] for place in asked.places]

    def _answer(self, answer: tickets.Answer, text: str) -> Answer:
        if isinstance(answer, GenerationResult):
            return Answer(text, self._cut(answer.hypotheses[0]))
        if isinstance(answer, OutOfMemoryError):
            return Answer(None, "needs more memory than the device has")
        raise BulkError(f"{self._model.manifest.name}: {answer}")

    def _cut(self, best: HypothesisResult) -> str:
        """Returns what is wrong with an answer that is not whole."""
        if best.reason is FinishReason.LENGTH and not self._length_chosen:
            return cut_at_limit(len(best.ids))
        return dead_end(len(best.ids)) if best.reason is FinishReason.DEAD_END else ""
