"""The shipped model in fp32: what is compared to float rounding needs it, while the one that ships is of integers."""

from pathlib import Path

IN_FULL = Path(__file__).parents[1] / "bundles" / "g2p-en"
