"""The two looks of a picture. Text and ground differ by a contrast of at least 4.5, as WCAG asks for small text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours as "#rrggbb".

    Attributes:
        ground: behind everything, always painted, so that a picture is readable on whatever page it stands.
        text: labels.
        muted: names of axes, ticks and frames.
        shades: of the heat maps, from no attention to the most.
    """

    ground: str
    text: str
    muted: str
    shades: tuple[str, ...]


# Shades of one hue (CIELAB, 272°) in equal steps of lightness, so that equal differences look equal and stay equal in
# greyscale: from 97 down to 18, and from 13 up to 95.
LIGHT = Palette(
    ground="#ffffff",
    text="#1b1f24",
    muted="#59636e",
    shades=(
        "#f3f7fe",
        "#cedbf2",
        "#a9c0e7",
        "#82a6db",
        "#558dcf",
        "#1d74bd",
        "#0d5c98",
        "#074473",
        "#032e50",
    ),
)
DARK = Palette(
    ground="#0d1117",
    text="#e6edf3",
    muted="#9198a1",
    shades=(
        "#1b222c",
        "#1f3957",
        "#145186",
        "#116baf",
        "#3585d0",
        "#599fee",
        "#89bafd",
        "#bdd5fe",
        "#eaf1ff",
    ),
)
