"""What a model needs of a device's memory, and what there is."""

from dragoman_server.bundle.manifest import Manifest
from dragoman_server.machine import free_memory, resident_memory
from dragoman_server.runtime import cuda
from dragoman_server.runtime.device import Device


def row_bytes(manifest: Manifest, itemsize: int) -> int:
    """Bytes of one cache row: keys and values of every decoder layer, of the target and of the source.

    Args:
        itemsize: of a number that the graphs compute with.
    """
    shape, limits = manifest.shape, manifest.limits
    positions = limits.max_source_tokens + limits.max_target_tokens
    width = shape.attention_width
    last = width if manifest.attention == "ort" else 0
    cached = 1 if manifest.cache == "int8" else itemsize
    return 2 * shape.decoder_layers * (width * positions * cached + last * itemsize)


def working_bytes(manifest: Manifest, source_tokens: int, rows: int, itemsize: int) -> int:
    """Bytes that an engine's largest runs take, about: twice what lives at once, as ONNX Runtime's arena does.

    (Measured with the model that ships, on a CPU: 96 MiB, where 52 MiB live and this says 104.)

    Args:
        source_tokens: of the largest encoder run, padding included.
        rows: of the largest step.
    """
    shape, longest = manifest.shape, manifest.limits.max_source_tokens
    tokens = max(min(source_tokens, rows * longest), longest)
    # Hidden states, queries, keys, values and the feed-forward layer; cross keys and values, which are the outputs.
    encoder = tokens * (4 * shape.d_model + shape.d_ff + 2 * shape.decoder_layers * shape.attention_width)
    attention = tokens * shape.heads * longest
    step = rows * (2 * shape.target_vocabulary + 4 * shape.d_model + shape.d_ff)
    return 2 * max(encoder + attention, step) * itemsize


def device_memory(device: Device) -> tuple[int, str, int]:
    """Bytes that are free on a device, where that is ("machine", "container" or "GPU"), and how many are in use.

    In use by this process; of a GPU by all, since it does not tell.
    """
    if device.kind == "cpu":
        free, place = free_memory()
        return free, place, resident_memory()
    free, total = cuda.free_memory(device.index)
    return free, "GPU", total - free
