"""The end of a decode step: from hidden states to the most probable tokens, and where the last layer looked.

All three parts work on rows that are named to them, and may be given none: a part that has no rows costs nothing. So
one graph serves rows that choose from the whole vocabulary and rows that choose from a short list, without an `If`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dragoman_export.graphs.operators import top_k
from dragoman_export.graphs.packing import rows_of


@dataclass(frozen=True)
class Choice:
    """What is to be known of some rows, each of which may be named more than once.

    Attributes:
        rows: int64 [n]
        scales: [n, 1], inverse temperatures.
        k: int64 [1], how many candidates to give.
        edit_ids: int64 [n, edits], columns of the logits to change; where one is named twice, in the same way.
        edit_penalties: [n, edits]; a logit x becomes x / penalty if it is positive, else x * penalty (Keskar et al.
            2019, section 4.1),
        edit_offsets: [n, edits], and this is added: -inf forbids a token.
    """

    rows: Tensor
    scales: Tensor
    k: Tensor
    edit_ids: Tensor
    edit_penalties: Tensor
    edit_offsets: Tensor


@dataclass(frozen=True)
class ShortList:
    """The only tokens that some rows may choose.

    Attributes:
        tokens: int64 [listed], token ids: those of all rows together.
        columns: int64 [n, own], for each row its places in `tokens`, in an order of its own: so the sums of its softmax
            are the same, to the last bit, whatever other rows may choose.
        mask: [n, own], added to the logits: -inf where a row's list is shorter.
    """

    tokens: Tensor
    columns: Tensor
    mask: Tensor


def choose(
    x: Tensor, projection: Tensor, bias: Tensor | None, choice: Choice, short: ShortList | None = None
) -> list[Tensor]:
    """The most probable tokens of some rows.

    LogitEdits come before the softmax, so what they forbid gives its probability to the rest: exact for the whole
    vocabulary, of which no more than the candidates leaves the device.

    Args:
        x: hidden states [rows, d_model]
        projection: of hidden states to logits [vocabulary, d_model]
        bias: of the logits [vocabulary]
        short: None for the whole vocabulary; else ids, edited ones too, are places in a row's own list.

    Returns:
        log-probabilities float32 [n, k] and ids int64 [n, k], best first, and log-probabilities float32 [n, edits] of
        the edited tokens.
    """
    x = rows_of(x, choice.rows)
    # A temperature divides all logits, for which it is enough to divide the far fewer numbers that they are products
    # of; but those could become too large for half precision.
    half = x.dtype != torch.float32
    if not half:
        x = x * choice.scales
    if short is None:
        logits = functional.linear(x, projection, bias).float()  # [n, vocabulary]
    else:
        own_bias = None if bias is None else bias.gather(0, short.tokens)
        logits = functional.linear(x, rows_of(projection, short.tokens), own_bias).float()  # [n, listed]
        logits = logits.gather(1, short.columns) + short.mask  # [n, own]
    if half:
        logits = logits * choice.scales
    before = logits.gather(1, choice.edit_ids)
    penalties = choice.edit_penalties
    after = torch.where(before > 0, before / penalties, before * penalties) + choice.edit_offsets
    log_probabilities = logits.scatter(1, choice.edit_ids, after).log_softmax(-1)
    return [*top_k(log_probabilities, choice.k), log_probabilities.gather(1, choice.edit_ids)]


def look(query: Tensor, keys: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
    """Where some rows look in the source, mean over the heads.

    Args:
        query: [rows, d_model], which holds the scale of the attention
        keys: [rows, heads, capacity, d_head]
        lengths: int32 [rows], of the sources
        rows: int64 [n]

    Returns:
        shares of attention float32 [n, capacity], 0 beyond the source.
    """
    heads, capacity, d_head = keys.shape[1:]
    chosen = rows_of(query, rows).reshape(-1, heads, 1, d_head)
    scores = chosen @ keys.index_select(0, rows).transpose(-2, -1)  # [n, heads, 1, capacity]
    beyond = torch.arange(capacity, dtype=torch.int32) >= lengths.gather(0, rows).reshape(-1, 1, 1, 1)
    weights = scores.float().masked_fill(beyond, -torch.inf).softmax(-1).squeeze(2)  # [n, heads, capacity]
    # A product, since ONNX Runtime's ReduceMean sums in another order where there is one row only. Its left factor is
    # gathered for every row: for one that rows share, CUDA is handed addresses that stand on the host, where a recorded
    # step (CudaGraphStep) would look for them again when they are gone.
    averaging = torch.full((1, 1, heads), 1 / heads).index_select(0, rows - rows)  # [n, 1, heads]
    return (averaging @ weights).squeeze(1)
