"""The processes that train one model together: which one this is, and what they agree on.

`torchrun` starts them, or any other launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Every process
calls the same methods in the same order. With one process, they cost nothing.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from dragoman_training.errors import Stopped, TrainingError

T = TypeVar("T")

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
JOINING = timedelta(minutes=10)  # until all processes have started
STEP = timedelta(minutes=30)  # for the gradients of one step
WORK = timedelta(days=7)  # for what one process does while the others wait, such as preparing the data
POLL = 0.25  # seconds between two looks for a stop
HEARING = timedelta(seconds=5)  # for process 0 to say why the job ends, and for the others to hear that
_STOP, _SPEAKER, _LEFT = "stop", "speaker", "left"


class LostProcess(TrainingError):
    """Another process of the job has ended or cannot be reached.

    Args:
        step: Step that is saved, if known.
    """

    def __init__(self, step: int | None = None) -> None:
        where = "" if step is None else f" from step {step}"
        super().__init__(f"another process of this job has ended or cannot be reached; continue with --resume{where}")


@contextmanager
def finding_losses() -> Iterator[None]:
    """Turns what the libraries say of a lost process into LostProcess."""
    try:
        yield
    except RuntimeError as error:
        # Gloo has no error class of its own, but its messages name its source file.
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            raise LostProcess from error
        raise


class Processes:
    """One process among those that train a model.

    Attributes:
        rank: Number of this process, from 0 on. Process 0 writes and prints.
        count: Number of processes.
        local_rank: Number of this process on its machine.
        keeps_store: Whether the store, through which the processes find each other, ends with process 0.
    """

    def __init__(
        self,
        rank: int = 0,
        count: int = 1,
        local_rank: int = 0,
        store: Store | None = None,
        keeps_store: bool = False,
    ) -> None:
        self.rank, self.count, self.local_rank = rank, count, local_rank
        self.keeps_store = keeps_store
        self._store = store
        # Connections of their own: one waits until another thread has got its answer.
        self._stops = None if store is None else _connection(store)
        self._voice = None if store is None else _connection(store)
        self._control: dist.ProcessGroup | None = None
        self._over = threading.Event()

    @staticmethod
    def of_environment() -> "Processes":
        """Returns what the variables of the launcher say; a single process without them.

        Raises:
            TrainingError: A variable is missing or wrong, or process 0 cannot be reached.
        """
        size = os.environ.get("WORLD_SIZE") or "1"
        if not size.isdecimal():
            raise TrainingError(f"WORLD_SIZE: expected a number of processes, got {size!r}")
        if int(size) <= 1 or "RANK" not in os.environ:
            return Processes()
        missing = [name for name in VARIABLES if not os.environ.get(name)]
        if missing:
            raise TrainingError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(missing)} is not set")
        try:
            store, rank, count = next(rendezvous("env://", timeout=JOINING))
        except (RuntimeError, ValueError) as error:
            address = ":".join(os.environ[name] for name in VARIABLES[2:])
            raise TrainingError(f"MASTER_ADDR and MASTER_PORT: {address} cannot be reached ({error})") from None
        of_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if of_launcher:
            # NOTE: It outlives the processes that torchrun restarts. Without a prefix, they would find the addresses of
            # their predecessors. Other stores are new, and machines that joined later have counted fewer restarts.
            store = PrefixStore(f"dragoman/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        return Processes(rank, count, int(os.environ.get("LOCAL_RANK", 0)), store, keeps_store=not of_launcher)

    @property
    def is_first(self) -> bool:
        """Whether this is process 0."""
        return self.rank == 0

    @contextmanager
    def connected(self, device: torch.device, stop: threading.Event) -> Iterator[None]:
        """Connects the processes inside the context, and makes a stop of one of them a stop of all.

        Args:
            device: Device of this process; gradients travel by NCCL between GPUs, by Gloo otherwise.
            stop: Event that stops this process. It is set when any process sets its own.

        Raises:
            LostProcess: Some processes did not start.
        """
        if self.count == 1:
            yield
            return
        assert self._stops is not None
        watching = threading.Thread(target=self._watch, args=(self._stops, stop), name="stops", daemon=True)
        watching.start()
        try:
            with finding_losses():
                dist.init_process_group(
                    "nccl" if device.type == "cuda" else "gloo",
                    store=self._store,
                    rank=self.rank,
                    world_size=self.count,
                    timeout=STEP,
                    device_id=device if device.type == "cuda" else None,
                )
                # NOTE: These messages wait for what one process does alone, so they have a group with more patience.
                self._control = dist.new_group(backend="gloo", timeout=WORK)
            yield
            dist.destroy_process_group()  # not after an error: it would wait for processes that are gone
        finally:
            self._over.set()
            watching.join()

    def _watch(self, store: Store, stop: threading.Event) -> None:
        """Passes a stop on to the other processes, and receives theirs."""
        told = False
        while not self._over.wait(POLL):
            try:
                if stop.is_set() and not told:
                    store.set(_STOP, "")
                    told = True
                elif not told and store.check([_STOP]):
                    stop.set()
                    told = True
            except RuntimeError:  # the store is gone, and with it the job
                return

    def sum(self, *values: float) -> list[float]:
        """Returns the sums of the values of all processes, in double precision."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        with finding_losses():
            dist.all_reduce(total, group=self._control)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Returns whether the flag of any process is set."""
        return self.sum(flag) != [0.0]

    def share(self, value: T) -> T:
        """Returns the value of process 0."""
        values = [value if self.is_first else None]
        if self.count > 1:
            with finding_losses():
                dist.broadcast_object_list(values, src=0, group=self._control)
        return values[0]  # type: ignore[return-value]

    def share_tensor(self, tensor: Tensor) -> Tensor:
        """Fills a CPU tensor with that of process 0 and returns it."""
        if self.count > 1:
            with finding_losses():
                dist.broadcast(tensor, src=0, group=self._control)
        return tensor

    def all_do(self, work: Callable[[], T]) -> list[T]:
        """Has each process do its share of some work, and returns their results in order.

        Raises:
            TrainingError, Stopped: The work raised it in one of the processes; all of them do.
        """
        if self.count == 1:
            return [work()]
        results: list[Any] = [None] * self.count
        with finding_losses():
            dist.all_gather_object(results, _outcome(work), group=self._control)
        return [_result(result) for result in results]

    def first_does(self, work: Callable[[], T]) -> T:
        """Has process 0 do some work while the others wait, and returns its result in all of them.

        Raises:
            TrainingError, Stopped: The work raised it; all processes do.
        """
        if self.count == 1:
            return work()
        result: T = _result(self.share(_outcome(work) if self.is_first else None))
        return result

    def may_speak(self) -> bool:
        """Returns whether this process is the one that tells why the job ends: process 0 if it is alive.

        It waits for process 0 for some seconds.
        """
        if self._voice is None:
            return True
        try:
            if not self.is_first:
                try:
                    self._voice.wait([_SPEAKER], HEARING)
                    return False
                except RuntimeError:
                    pass
            return bool(self._voice.add(_SPEAKER, 1) == 1)
        except RuntimeError:  # the store is gone, with the process that held it
            return True

    def leave(self) -> None:
        """Tells process 0 that this one ends.

        Process 0 waits for that for some seconds if the store ends with it: the others still have to hear from there
        that it has spoken.
        """
        if self._voice is None or not self.keeps_store:
            return
        with suppress(RuntimeError):  # another process has ended before
            if self.is_first:
                self._voice.wait([f"{_LEFT}{rank}" for rank in range(1, self.count)], HEARING)
            else:
                self._voice.set(f"{_LEFT}{self.rank}", "")


def _connection(store: Store) -> Store:
    connection: Store = store.clone()  # type: ignore[attr-defined]
    return connection


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except (TrainingError, Stopped) as error:
        return error


def _result(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


ALONE = Processes()
