"""What stands at the axes of a picture of attention, and which heat maps it has."""

import pytest

from dragoman.attention.figure import select_panels as select
from dragoman.attention.labels import label
from dragoman.results import Attention


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("▁the", "▁the"),
        ("▁", "▁"),
        ("Ġthe", "Ġthe"),
        ("<0xE4>", "<0xE4>"),
        ("你好", "你好"),
        ("مرحبا", "مرحبا"),
        ("", '""'),
        (" ", "␣"),
        ("a b ", "a␣b␣"),
        ("\t\r\n", r"\t\r\n"),
        ("a\0", "a<U+0000>"),
        ("\x7f", "<U+007F>"),
        ("\xa0", "<U+00A0>"),
        ("\u3000", "<U+3000>"),
        ("\u2028", "<U+2028>"),
        ("\u202eabc", "<U+202E>abc"),  # would turn what follows round
        ("\u200b", "<U+200B>"),
        ("\ufeff", "<U+FEFF>"),
        ("\ue000", "<U+E000>"),
        ("\ud800", "<U+D800>"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("\u093f", "◌\u093f"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # Persian: a letter that must not join the next
        ("\u200cخواهم", "<U+200C>خواهم"),
        ("\u200d", "<U+200D>"),
        ("❤\ufe0f", "❤"),
        ("\ufe0f", "<U+FE0F>"),
        ("a" * 20, "a" * 20),
        ("a" * 21, "a" * 19 + "…"),
    ],
)
def test_tokens_are_legible(token: str, shown: str) -> None:
    assert label(token) == shown


def test_characters_without_a_font_are_shown_by_their_numbers() -> None:
    assert label("a你\u0301", missing={"你"}) == "a<U+4F60>\u0301"
    assert label("\u0301", missing={"\u0301"}) == "<U+0301>"


@pytest.fixture
def attention() -> Attention:
    """Of 2 layers, 3 heads, 1 target token and 2 source tokens; the shares say where they stand, layer and head."""
    shares = [share for layer in range(2) for head in range(3) for share in (layer / 2 + head / 10, 1.0)]
    return Attention(layers=2, heads=3, target_tokens=1, source_tokens=2, weights=shares)


@pytest.mark.parametrize(
    ("choice", "share", "caption"),
    [
        ({}, 0.35, "mean of 2 layers × 3 heads"),
        ({"layer": 1}, 0.6, "layer 1, mean of 3 heads"),
        ({"layer": -1}, 0.6, "layer 1, mean of 3 heads"),
        ({"head": 0}, 0.25, "head 0, mean of 2 layers"),
        ({"layer": 0, "head": -1}, 0.2, "layer 0, head 2"),
    ],
)
def test_one_heat_map_is_the_mean_of_what_was_chosen(
    attention: Attention, choice: dict[str, int], share: float, caption: str
) -> None:
    panels = select(attention, layer=choice.get("layer"), head=choice.get("head"), grid=False)
    assert panels.caption == f"Cross-attention: {caption}"
    assert (panels.row_names, panels.column_names) == ([], [])
    ((weights,),) = panels.rows
    assert weights == [[pytest.approx(share), 1.0]]


@pytest.mark.parametrize(
    ("layer", "head", "shares", "row_names", "column_names", "caption"),
    [
        (
            None,
            None,
            [[0.0, 0.1, 0.2], [0.5, 0.6, 0.7]],
            ["layer 0", "layer 1"],
            ["head 0", "head 1", "head 2"],
            "2 layers × 3 heads",
        ),
        (1, None, [[0.5, 0.6, 0.7]], [], ["head 0", "head 1", "head 2"], "layer 1, 3 heads"),
        (None, -1, [[0.2], [0.7]], ["layer 0", "layer 1"], [], "head 2, 2 layers"),
        (1, 1, [[0.6]], [], [], "layer 1, head 1"),
    ],
)
def test_a_grid_has_layers_down_and_heads_across(
    attention: Attention,
    layer: int | None,
    head: int | None,
    shares: list[list[float]],
    row_names: list[str],
    column_names: list[str],
    caption: str,
) -> None:
    panels = select(attention, layer=layer, head=head, grid=True)
    assert [[weights[0][0] for weights in row] for row in panels.rows] == [pytest.approx(row) for row in shares]
    assert (panels.row_names, panels.column_names) == (row_names, column_names)
    assert panels.caption == f"Cross-attention: {caption}"


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (2, None, "layer: there is no 2; the layers are 0 to 1, or -1 for the last"),
        (-3, None, "layer: there is no -3; the layers are 0 to 1, or -1 for the last"),
        (None, 3, "head: there is no 3; the heads are 0 to 2, or -1 for the last"),
    ],
)
def test_layers_and_heads_that_do_not_exist_are_refused(
    attention: Attention, layer: int | None, head: int | None, message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        select(attention, layer=layer, head=head, grid=False)
    assert str(caught.value) == message


def test_nothing_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        select(Attention(2, 3, 0, 5, []), layer=None, head=None, grid=False)
