"""A replica on a simulated clock: an event loop, and engines that the server's own scheduler gives work to."""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from dragoman_server.core.requests import GenerationRequest
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.decoding.greedy import GreedySearch
from dragoman_server.engine.encoder_batches import encoder_runs
from dragoman_server.engine.job import Job
from dragoman_server.engine.scheduler import Scheduler, SchedulerOptions
from tests.scale.clock import Action, Clock, Cores
from tests.scale.service import Service

SEARCH, OPTIONS = GreedySearch(0, 1), SearchOptions(1)
UNBOUNDED = 1 << 60  # no queue of the simulation refuses a request, so that its latency shows


@dataclass(slots=True)
class Call:
    """One request.

    Attributes:
        source, target: Tokens.
        due: When the client sent it.
        queued, started, done: When it entered the queue, when an engine took it, when its answer was sent.
    """

    source: int
    target: int
    due: float
    queued: float = 0.0
    started: float = 0.0
    done: float = 0.0

    @property
    def waited(self) -> float:
        return self.started - self.queued

    @property
    def latency(self) -> float:
        return self.done - self.due


def scheduler_options(service: Service) -> SchedulerOptions:
    """Returns the server's options for this replica, without limits of the queue."""
    return SchedulerOptions(
        UNBOUNDED,
        UNBOUNDED,
        min_rows_per_engine=service.min_rows_per_engine,
        min_single_rows_per_engine=service.min_single_rows_per_engine,
    )


class Replica:
    """One server.

    The event loop handles one call after the other, half of its work before the queue and half after. Engines take
    turns as in dragoman_server.engine.engine: admit, encode, step. All of these are threads that share the cores.

    Args:
        on_done: Called with each call that is answered.
        client_seconds: CPU time that clients on the same machine spend for a call, in one thread; 0 if they are
            elsewhere.
    """

    def __init__(
        self,
        clock: Clock,
        service: Service,
        on_done: Callable[[Call], None],
        client_seconds: float = 0.0,
    ) -> None:
        self.clock, self.service, self._on_done = clock, service, on_done
        self.cores = Cores(clock, service.cores)
        self.scheduler = Scheduler(service.engines, scheduler_options(service))
        self.engines = [_Engine(self, index) for index in range(service.engines)]
        self._sleepers = list(self.engines)
        self._loop = _Thread(self.cores, service.call_seconds / 2)
        self._client = _Thread(self.cores, client_seconds / 2) if client_seconds else None
        self.outstanding = 0  # calls that clients wait for

    @property
    def waiting(self) -> int:
        """The metric by which pods scale, dragoman_requests_waiting."""
        return self.scheduler.waiting

    def send(self, call: Call) -> None:
        self.outstanding += 1
        if self._client:
            self._client.do(lambda: self._loop.do(lambda: self._submit(call)))
        else:
            self._loop.do(lambda: self._submit(call))

    def answer(self, call: Call) -> None:
        """Sends the answer of a call that an engine has finished."""

        def done() -> None:
            call.done = self.clock.now
            self.outstanding -= 1
            self._on_done(call)

        client = self._client
        self._loop.do((lambda: client.do(done)) if client else done)

    def fall_asleep(self, engine: "_Engine") -> None:
        self._sleepers.append(engine)

    def _submit(self, call: Call) -> None:
        call.queued = self.clock.now
        self.scheduler.submit(Job(_request(call.source), SEARCH, call.queued, handle=call))
        asleep = len(self._sleepers)
        if asleep and self.scheduler.should_wake_engine(len(self.engines) - asleep):
            self._sleepers.pop().turn()


class _Thread:
    """A thread that does one piece of work after the other, each of the same CPU time."""

    def __init__(self, cores: Cores, seconds: float) -> None:
        self._cores, self._seconds = cores, seconds
        self._todo: deque[Action] = deque()

    def do(self, then: Action) -> None:
        """Does a piece of work after those that wait, and then calls `then`."""
        self._todo.append(then)
        if len(self._todo) == 1:
            self._cores.compute(self._seconds, self._done)

    def _done(self) -> None:
        then = self._todo.popleft()
        if self._todo:
            self._cores.compute(self._seconds, self._done)
        then()


class _Engine:
    """One engine: a turn is an encoder run for what was admitted, and a step of all rows.

    Attributes:
        used: Rows in use.
        steps: Steps made.
    """

    def __init__(self, replica: Replica, index: int) -> None:
        self.replica, self.index = replica, index
        self.used = 0
        self.steps = 0
        self._ending: dict[int, list[Call]] = defaultdict(list)  # by the step that is their last

    def turn(self) -> None:
        replica, clock, service = self.replica, self.replica.clock, self.replica.service
        scheduler = replica.scheduler
        if not (self.used or scheduler.has_work_for(self.index)):
            replica.fall_asleep(self)
            return
        admitted = scheduler.take(self.index, service.rows - self.used, clock.now).admitted
        seconds = 0.0
        if admitted:
            for run in encoder_runs(admitted):
                tokens = sum(len(job.request.source_ids) for job in run)
                seconds += service.encode_seconds + tokens * service.token_seconds
            for job in admitted:
                call = job.handle
                assert isinstance(call, Call)
                call.started = clock.now
                self._ending[self.steps + call.target].append(call)
            self.used += len(admitted)
        elif not self.used:
            raise RuntimeError(f"engine {self.index} has work but the scheduler gives it none")
        seconds += service.step_seconds + self.used * service.row_seconds
        replica.cores.compute(seconds, self._stepped)

    def _stepped(self) -> None:
        replica = self.replica
        self.steps += 1
        done = self._ending.pop(self.steps, None)
        if done:
            self.used -= len(done)
            replica.scheduler.release(self.index, len(done), replica.clock.now, finished=len(done))
            for call in done:
                replica.answer(call)
        self.turn()


_requests: dict[int, GenerationRequest] = {}


def _request(source: int) -> GenerationRequest:
    """Returns a request with as many source tokens; the scheduler looks at nothing else."""
    if source not in _requests:
        _requests[source] = GenerationRequest([0] * source, OPTIONS)
    return _requests[source]
