"""Names of devices: cpu, cuda:1, or several at once."""

import re

EXPECTED = "expected auto, cpu, cuda, one GPU such as cuda:1, or several such as cuda:0,cuda:1"
_SINGLE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
_GPU = re.compile(r"cuda:\d{1,3}")


def split_devices(value: str) -> tuple[str, ...]:
    """Splits a value of --device: "cuda:0,cuda:1" -> ("cuda:0", "cuda:1").

    Raises:
        ValueError: A name is invalid, or occurs twice; the message says what is expected.
    """
    devices = tuple(part.strip() for part in value.split(","))
    valid = len(devices) == 1 and _SINGLE.fullmatch(devices[0]) is not None
    if len(devices) > 1:
        valid = all(map(_GPU.fullmatch, devices)) and len({int(device[5:]) for device in devices}) == len(devices)
    if not valid:
        raise ValueError(EXPECTED)
    return devices
