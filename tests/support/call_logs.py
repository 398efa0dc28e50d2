"""Log lines and call records for tests."""

import asyncio
import io
import json
from typing import Any

from dragoman_server.core.call_record import CallRecord
from dragoman_server.core.requests import Stages
from dragoman_server.telemetry.log_lines import LineWriter
from dragoman_server.telemetry.logs import line_renderer
from dragoman_server.telemetry.observer import Observer


class Log:
    """An observer and the lines that it logs."""

    def __init__(self, **options: Any) -> None:
        self.stream = io.StringIO()
        self.lines = LineWriter(self.stream)
        self.observer = Observer(self.lines, line_renderer("json"), **options)

    async def entries(self, count: int) -> list[dict[str, Any]]:
        """Returns all log entries once there are at least `count`."""
        for _ in range(1000):
            assert await asyncio.to_thread(self.lines.drain, 20)
            entries = [json.loads(line) for line in self.stream.getvalue().splitlines()]
            if len(entries) >= count:
                return entries
            await asyncio.sleep(0.01)
        raise AssertionError(f"there are {len(entries)} lines, not {count}")


def call_record(until: float, **stages: float) -> CallRecord:
    """Returns the record of a call from time 10 to `until`; `stages` are points in time."""
    record = CallRecord("dragoman.v1.GenerationService/Generate", "name")
    record.received, record.started, record.tokenizing, record.tokenized, record.ended = 9.0, 10.0, 11.0, 12.0, until
    record.stages = Stages(12.0, **stages)
    return record
