"""What a GenerateMany call keeps for each model version that its items use."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.requests import Priority
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.engine.job import CallQueue
from dragoman_server.messages.generation_options import ResponseDetails, reseeded
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.models.registry import ServedVersion

KNOWN_OPTIONS = 64  # distinct options of items that are remembered

Options: TypeAlias = tuple[SearchOptions, ResponseDetails]


@dataclass(slots=True, eq=False)
class Lane:
    """The items of one model version and one priority that are in the engines.

    Attributes:
        model: The version; it is kept open, and the call has a sub-queue in it, while there are items.
        items: Number of items.
        queue: The sub-queue, while there are items.
    """

    served: ServedVersion
    items: int = 0
    queue: CallQueue | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    @property
    def model(self) -> ServedModel:
        return self.served.model

    def enter(self) -> CallQueue:
        """Adds an item, and returns the queue to submit it to. Raises QueueFullError: too many batch calls run."""
        if self.queue is None:
            with ExitStack() as stack:
                stack.enter_context(self.served.used())
                self.queue = stack.enter_context(self.model.open_call(alike=False))
                self._open = stack.pop_all()
        self.items += 1
        return self.queue

    def leave(self) -> None:
        """Removes an item."""
        self.items -= 1
        if not self.items:
            self.queue = None
            self._open.close()


@dataclass(slots=True, eq=False)
class VersionUse:
    """What a call keeps for one model version.

    Attributes:
        lanes: Items in the engines, by priority.
    """

    served: ServedVersion
    lanes: dict[Priority, Lane] = field(default_factory=dict)
    _defaults: Options | None = None  # what the call's defaults mean for the model
    _known: dict[tuple[bytes, bytes], Options] = field(default_factory=dict)  # and options and details of items

    @property
    def items(self) -> int:
        """Number of items in the engines."""
        return sum(lane.items for lane in self.lanes.values())

    def lane(self, priority: Priority) -> Lane:
        lane = self.lanes.get(priority)
        if lane is None:
            lane = self.lanes[priority] = Lane(self.served)
        return lane

    async def options(self, request: pb.GenerateRequest, defaults: pb.GenerateRequest) -> Options:
        """Returns how to search for an item, and what its response includes. Raises ApiError."""
        model, options = self.served.model, defaults.options
        if not request.HasField("options") and not request.HasField("details"):
            found = self._defaults
            if found is None:
                found = self._defaults = await model.read_options(options, defaults.details)
        else:
            options = request.options if request.HasField("options") else options
            details = request.details if request.HasField("details") else defaults.details
            key = options.SerializeToString(deterministic=True), details.SerializeToString(deterministic=True)
            found = self._known.get(key)
            if found is None:
                found = await model.read_options(options, details)
                if len(self._known) >= KNOWN_OPTIONS:
                    self._known.clear()
                self._known[key] = found
        search, response_details = found
        if search.sampling is not None and not options.HasField("seed"):
            search = reseeded(search)
        return search, response_details

    def forget_defaults(self) -> None:
        """Takes note that the call's defaults have changed."""
        self._defaults = None
