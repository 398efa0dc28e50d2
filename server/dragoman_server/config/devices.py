"""How devices are named: cpu, cuda:1, or several at once."""

import re

EXPECTED = "expected auto, cpu, cuda, one GPU such as cuda:1, or several such as cuda:0,cuda:1"
_ONE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
_GPU = re.compile(r"cuda:\d{1,3}")


def split_devices(value: str) -> tuple[str, ...]:
    """The devices that a value of --device names: "cuda:0,cuda:1" -> ("cuda:0", "cuda:1").

    Raises:
        ValueError: it names none, or some twice; the message says what was expected.
    """
    devices = tuple(part.strip() for part in value.split(","))
    named = len(devices) == 1 and _ONE.fullmatch(devices[0]) is not None
    if len(devices) > 1:
        named = all(map(_GPU.fullmatch, devices)) and len({int(each[5:]) for each in devices}) == len(devices)
    if not named:
        raise ValueError(EXPECTED)
    return devices
