"""Where the server computes: in its own process, or in workers."""

from collections.abc import Sequence

from dragoman_server.config import ServerConfig
from dragoman_server.config.devices import split_devices
from dragoman_server.engine.host import Host, LocalHost
from dragoman_server.machine import usable_cpus
from dragoman_server.metrics import ServerMetrics
from dragoman_server.workers.worker import Worker


def make_hosts(config: ServerConfig, metrics: ServerMetrics) -> Sequence[Host]:
    """Starts the workers that the configuration asks for; this process where it asks for none."""
    devices = split_devices(config.device)
    if len(devices) == 1 and config.workers is None:
        return [LocalHost()]
    if len(devices) == 1:
        devices *= config.workers or 1
    cores = max(1, usable_cpus() // len(devices))
    return [
        Worker(index, device, config.device, cores, config.hang_seconds, metrics)
        for index, device in enumerate(devices)
    ]
