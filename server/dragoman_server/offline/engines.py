"""A model's engines in this process without a server: no event loop between a request and its engine."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dragoman.bulk.errors import BulkError, StoppedError
from dragoman_server.bundle.load import Bundle
from dragoman_server.core.errors import EngineError
from dragoman_server.core.requests import GenerationRequest, GenerationResult
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.engine import Engine
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.host import LocalHost
from dragoman_server.engine.job import CallQueue, Event, Job
from dragoman_server.engine.memory_budget import rows_for
from dragoman_server.engine.scheduler import Scheduler
from dragoman_server.engine.shared_queue import SharedQueue
from dragoman_server.offline.batch_threads import BatchThreads, fits_batches
from dragoman_server.offline.tickets import Answer, Place, Ticket
from dragoman_server.offline.unmeasured import Unmeasured
from dragoman_server.runtime.device import first_line
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.scorer_session import ScorerSession

# Nobody waits for a single answer, so an engine encodes many sources at once. Measured with the shipped model on two
# cores: with a quarter of its rows free it generates 40,000 tokens a second, with three quarters 45,000.
MIN_FREE_SHARE = 0.75
ENCODE_TOKENS = 16384
SUBMITTED_AT_ONCE = 512  # jobs made before the engines see them
POLL_SECONDS = 0.1  # between two looks at whether to stop


class OfflineEngines:
    """Engines that answer requests of one process, as fast as the machine can.

    On a CPU plain greedy and beam searches are decoded by batches; all others, and all on a GPU, by the server's
    engines. `submit`, `wait` and `close` belong to one thread.

    Args:
        bundle: The model.
        options: How the engines are set up, as `dragoman-serve` reads them.

    Attributes:
        rows: Cache rows of each engine.
        count: Number of engines.
        threads: CPU threads of each engine.
        answered: Number of requests answered so far.
        tokens: Target tokens of their hypotheses, end tokens included.

    Raises:
        BundleError: The graphs do not match the manifest.
        DeviceError: The device can't run the model, or lacks the memory for it.
    """

    def __init__(self, bundle: Bundle, options: EngineOptions) -> None:
        self._bundle = bundle
        self._options = options = replace(
            options,
            scheduling=replace(
                options.scheduling,
                encode_tokens=ENCODE_TOKENS,
                min_rows_per_engine=1,
                min_single_rows_per_engine=1,
                min_free_share=MIN_FREE_SHARE,
            ),
        )
        self._model = model = LocalHost().load(bundle, options)
        self.rows = rows_for(bundle, options, [model])
        self.count, self.threads, self.device = model.engines, model.threads, model.device
        # Both have runtimes of their own, made at first use: usually only one of them is used.
        self._engines: list[Engine] = []
        self._batches: BatchThreads | None = None
        padded = 0 if model.device.kind == "cpu" else bundle.manifest.limits.max_source_tokens
        scheduler = Scheduler(model.engines, replace(options.scheduling, min_source_tokens=padded))
        self._queue, self._call = SharedQueue(scheduler), CallQueue(accepted=True)
        self._text = TargetDecoder(bundle.target_tokenizer)
        self._answers = threading.Lock()
        self._failure: BaseException | None = None
        self.answered = self.tokens = 0

    def submit(self, requests: Sequence[GenerationRequest]) -> Ticket:
        """Queues requests, to be started in their order.

        Raises:
            BundleError, DeviceError: The graphs can't run.
        """
        ticket = Ticket(requests)
        vocabulary = self._bundle.manifest.shape.target_vocabulary
        searches = {id(request.search): request.search for request in requests}.values()
        if self.device.kind == "cpu" and all(fits_batches(search, vocabulary) for search in searches):
            if self._batches is None:
                self._batches = BatchThreads(self._runtimes(), self._deliver, self._failed)
            self._batches.submit(ticket)
        else:
            self._submit_to_engines(ticket, vocabulary)
        return ticket

    def wait(self, ticket: Ticket, should_stop: Callable[[], bool]) -> list[Answer]:
        """Waits for the answers to all requests. One that failed is tried once more, alone.

        Raises:
            StoppedError: `should_stop` returned True.
            BulkError: An engine has failed.
        """
        self._wait(ticket, should_stop)
        answers = [answer for answer in ticket.answers if answer is not None]
        for index, answer in enumerate(answers):
            if isinstance(answer, EngineError):
                again = self.submit([ticket.requests[index]])
                self._wait(again, should_stop)
                [second] = again.answers
                assert second is not None
                answers[index] = second
        return answers

    def close(self) -> None:
        """Ends the engines; what they have not answered is lost."""
        if self._batches is not None:
            self._batches.close()
        with self._queue.lock:
            self._queue.stopping = True
            self._queue.wake_all()
        for engine in self._engines:
            engine.join()
        self._model.close()

    def scorer(self) -> ScorerSession:
        """Returns the scorer graph on the device of the engines."""
        return self._model.scorer()

    def _runtimes(self) -> list[Runtime]:
        return [self._model.runtime(index, self.rows) for index in range(self.count)]

    def _submit_to_engines(self, ticket: Ticket, vocabulary: int) -> None:
        if not self._engines:
            self._engines = [
                Engine(
                    index, runtime, self._queue, Unmeasured(), self._take_events, self._failed, self._options.max_errors
                )
                for index, runtime in enumerate(self._runtimes())
            ]
            for engine in self._engines:
                engine.start()
        requests, tokens = ticket.requests, self._bundle.manifest.tokens
        for first in range(0, len(requests), SUBMITTED_AT_ONCE):
            now, jobs = time.monotonic(), []
            for index, request in enumerate(requests[first : first + SUBMITTED_AT_ONCE], first):
                search = make_search(request.search, tokens, vocabulary, self._text, request.source_ids)
                jobs.append(Job(request, search, now, handle=Place(ticket, index)))
            with self._queue.lock:
                for job in jobs:
                    self._queue.scheduler.submit(job, self._call)
                self._queue.wake_all()

    def _wait(self, ticket: Ticket, should_stop: Callable[[], bool]) -> None:
        while not ticket.wait(POLL_SECONDS):
            if should_stop():
                raise StoppedError
            if self._failure is not None:
                break
        if self._failure is not None:
            name, detail = type(self._failure).__name__, first_line(self._failure)
            raise BulkError(f"{self._bundle.path}: an engine failed: {name}: {detail}")

    def _take_events(self, events: list[tuple[Job, Event]]) -> None:
        """Takes the events of a step. Called in the engines' threads."""
        ended: list[tuple[Place, Answer]] = []
        for job, event in events:
            if isinstance(event, GenerationResult | EngineError):
                assert isinstance(job.handle, Place)
                ended.append((job.handle, event))
        self._deliver(ended)

    def _deliver(self, answers: Sequence[tuple[Place, Answer]]) -> None:
        with self._answers:
            for place, answer in answers:
                if isinstance(answer, GenerationResult):
                    self.tokens += sum(len(hypothesis.ids) + 1 for hypothesis in answer.hypotheses)
                    self.answered += 1
                place.ticket.deliver(place.position, answer)

    def _failed(self, error: BaseException) -> None:
        """Called in the thread of the engine that failed."""
        self._failure = error
