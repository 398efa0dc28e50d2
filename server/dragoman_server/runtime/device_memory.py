"""Device memory: what a model needs and what is free."""

from typing import NamedTuple

from dragoman_server.bundle.manifest import Manifest
from dragoman_server.machine import free_memory, resident_memory
from dragoman_server.runtime import cuda
from dragoman_server.runtime.buffers import unwritten_bytes
from dragoman_server.runtime.device import Device


class DeviceMemory(NamedTuple):
    """Memory of a device.

    Attributes:
        free: Bytes that can still be allocated.
        place: Whose they are: "machine", "container" or "GPU".
        used: Bytes in use: by this process on a CPU, by all processes on a GPU, which does not tell them apart.
        reserved: Bytes of this process's caches that are not in use yet: `free` still contains them, `used` does not.
    """

    free: int
    place: str
    used: int
    reserved: int = 0


def row_bytes(manifest: Manifest, itemsize: int) -> int:
    """Returns the size of one cache row: keys and values of every decoder layer, for target and source positions.

    Args:
        itemsize: Size of a number that the graphs compute with.
    """
    shape, limits = manifest.shape, manifest.limits
    positions = limits.max_source_tokens + limits.max_target_tokens
    width = shape.attention_width
    last = width if manifest.attention == "ort" else 0
    cached = 1 if manifest.cache == "int8" else itemsize
    return 2 * shape.decoder_layers * (width * positions * cached + last * itemsize)


def working_bytes(manifest: Manifest, source_tokens: int, rows: int, itemsize: int) -> int:
    """Estimates the memory of an engine's largest runs: twice what is live at once, as ONNX Runtime's arena uses.

    (Measured on a CPU, encoding 512 tokens: 12 MiB used and 13 estimated with the shipped model, 46 and 42 with the
    base shape.)

    Args:
        source_tokens: Tokens of the largest encoder run, padding included.
        rows: Rows of the largest step.
        itemsize: Size of a number that the graphs compute with.
    """
    shape, longest = manifest.shape, manifest.limits.max_source_tokens
    tokens = max(min(source_tokens, rows * longest), longest)
    # Hidden states, queries, keys, values and the feed-forward layer; cross keys and values, which are the outputs.
    encoder = tokens * (4 * shape.d_model + shape.d_ff + 2 * shape.decoder_layers * shape.attention_width)
    attention = tokens * shape.heads * longest
    step = rows * (2 * shape.target_vocabulary + 4 * shape.d_model + shape.d_ff)
    return 2 * max(encoder + attention, step) * itemsize


def device_memory(device: Device) -> DeviceMemory:
    """Returns the memory of a device now."""
    if device.kind == "cpu":
        return DeviceMemory(*free_memory(), resident_memory(), unwritten_bytes())
    free, total = cuda.free_memory(device.index)
    return DeviceMemory(free, "GPU", total - free)
