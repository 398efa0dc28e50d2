"""Numbers as people read them in a terminal, and the lines of blocks that show how they were."""

from collections.abc import Sequence

NONE = "–"
BLOCKS = "▁▂▃▄▅▆▇█"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def digits(value: float) -> str:
    """Three digits that count, but never fewer than stand before the point: 0.123, 1.23, 12.3, 123, 1,234."""
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 9.995 else 2}f}"


def rate(value: float | None) -> str:
    if value is None:
        return NONE
    return "< 0.01" if 0 < value < 0.005 else digits(value)


def share(value: float | None) -> str:
    if value is None:
        return NONE
    if 0 < value < 0.001:
        return "< 0.1 %"
    return f"{100 * value:.1f} %" if 0 < value < 1 else f"{100 * value:.0f} %"


def seconds(value: float | None, most: float | None = None) -> str:
    """
    Args:
        most: what is measured at most; that and more is only known to be more.
    """
    if value is None:
        return NONE
    if most is not None and value >= most:
        return f"> {seconds(most)}"
    if value < 0.9995:
        return f"{digits(1000 * value)} ms"
    return f"{digits(value)} s" if value < 120 else f"{digits(value / 60)} min"


def size(value: float) -> str:
    unit = 0
    while value >= 1023.5 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{digits(value) if unit else int(value)} {UNITS[unit]}"


def since(value: float) -> str:
    """How long, to the larger of two units."""
    for name, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= length:
            return f"{value // length:.0f} {name}"
    return f"{max(0, value):.0f} s"


def sparkline(values: Sequence[float | None], width: int, most: float | None = None) -> str:
    """One line of blocks, the newest at its right end; where nothing is known it has a gap.

    Args:
        values: at equal distances in time. Where they are more than `width`, each block is the highest of several.
        most: what a full block stands for; None for the highest value.
    """
    known = [value for value in values if value is not None]
    if not known:
        return " " * width
    top = most if most is not None else max(known)
    each = -(-len(values) // width)  # rounded up
    padded = [None] * (-len(values) % each) + list(values)
    groups = [[value for value in padded[at : at + each] if value is not None] for at in range(0, len(padded), each)]
    blocks = "".join(_block(max(group), top) if group else " " for group in groups)
    return blocks.rjust(width)


def _block(value: float, top: float) -> str:
    return BLOCKS[min(len(BLOCKS) - 1, int(value / top * len(BLOCKS)))] if top > 0 else BLOCKS[0]
