"""Prices that the plan assumes, in US dollars. None comes from an offer: check them before you rely on a sum."""

from typing import NamedTuple

HOURS, MILLION = 3600.0, 1e6
EURO = 1.10  # dollars; assumed


class Machine(NamedTuple):
    """A machine for rent.

    Attributes:
        name: What the provider calls it.
        hour: Price per hour.
        cores: Cores; what the provider sells as two threads of a core counts as one.
        accelerator: Its GPU, "" for none.
        bandwidth: Bytes per second that the GPU reads from its memory, as its data sheet says.
        source: Where the price was read.
    """

    name: str
    hour: float
    cores: int
    accelerator: str
    bandwidth: float
    source: str


CPU = Machine("AWS c7a.large, on demand", 0.1027, 2, "", 0.0, "third-party list, undated")
GPUS = (
    Machine("AWS g6.xlarge, on demand", 0.805, 2, "L4", 300e9, "third-party notes, undated"),
    Machine("AWS g5.xlarge, on demand", 1.006, 2, "A10G", 600e9, "third-party article, June 2026"),
    Machine("AWS p5.48xlarge, one of 8 GPUs, capacity block", 4.916, 12, "H100", 3350e9, "copy of AWS's page of 2024"),
)


class Api(NamedTuple):
    """A managed translation API: dollars for a million characters of source text."""

    name: str
    million_characters: float
    source: str


APIS = (
    Api("Google Cloud Translation, NMT", 20.0, "copy of the provider's page"),
    Api("Amazon Translate", 15.0, "third-party notes that cite the provider's page"),
    Api("DeepL API Pro", 20.0 * EURO, "copy of the provider's help: 20 euros, and 4.99 euros a month"),
)
