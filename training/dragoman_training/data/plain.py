"""Pairs before their random changes, which teachers read: what they say of a plain sentence holds for a changed one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class PlainPairs:
    """The padded tensors of a batch as teachers read it.

    Attributes:
        source: Source ids [batch, plain source].
        target_input: Decoder input ids [batch, plain target], starting with the begin token.
        places: For each id to predict, the place of the same one in [batch * plain target], -1 if it was inserted or is
            padding [batch, target].
    """

    source: Tensor
    target_input: Tensor
    places: Tensor

    def to(self, device: torch.device) -> "PlainPairs":
        """Returns the pairs on a device."""
        return PlainPairs(*(t.to(device, non_blocking=True) for t in (self.source, self.target_input, self.places)))


def find_places(changed: Sequence[int], plain: Sequence[int]) -> list[int] | None:
    """Finds the tokens of a plain target in a changed one.

    Returns:
        The place of each changed token in the plain target, -1 for inserted ones; None if the targets differ by more
        than one run of inserted tokens.
    """
    inserted = len(changed) - len(plain)
    same = 0
    while same < min(len(plain), len(changed)) and changed[same] == plain[same]:
        same += 1
    if inserted < 0 or list(changed[same + inserted :]) != list(plain[same:]):
        return None
    return [*range(same), *[-1] * inserted, *range(same, len(plain))]


def pad_places(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    """Pads the places of each pair in its own plain target, and counts them over the whole batch.

    Args:
        rows: Places of each pair.
        width: Length of the padded plain targets.

    Returns:
        The places in [batch * width], int64 [batch, longest row].
    """
    places = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for i, row in enumerate(rows):
        own = np.asarray(row)
        places[i, : len(row)] = np.where(own < 0, -1, own + i * width)
    return torch.from_numpy(places)
