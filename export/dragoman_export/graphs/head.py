"""The head of the decoder graph: from hidden states to the most probable tokens, and the attention to the source.

Each part works on the rows listed in its inputs. The list may be empty, and an empty list costs nothing. So one graph
serves rows that choose from the whole vocabulary and rows with a shortlist, without an `If`.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dragoman_export.graphs.operators import scatter_rows, top_k
from dragoman_export.graphs.packing import gather_rows


class HeadInputs(NamedTuple):
    """The step requests of some rows. A row may be listed more than once.

    Attributes:
        rows: Row numbers, int64 [n].
        scales: Inverse temperatures [n, 1].
        k: Number of candidates to return, int64 [1].
        edit_ids: Logit columns to edit, int64 [n, edits]. Duplicates must carry the same edit.
        edit_penalties: Penalties [n, edits]. A logit x becomes x / penalty if it is positive, else x * penalty (Keskar
            et al. 2019, section 4.1).
        edit_offsets: Numbers added after the penalty [n, edits]; -inf forbids a token.
    """

    rows: Tensor
    scales: Tensor
    k: Tensor
    edit_ids: Tensor
    edit_penalties: Tensor
    edit_offsets: Tensor


class Shortlist(NamedTuple):
    """The only tokens that some rows may choose.

    Attributes:
        tokens: Token ids of all rows together, int64 [listed].
        columns: Indices into `tokens` for each row, int64 [n, own]. Each row has an order of its own, so the sums of
            its softmax are the same to the last bit, whatever other rows may choose.
        mask: Numbers added to the logits [n, own]: -inf where a row's list is shorter than the longest.
    """

    tokens: Tensor
    columns: Tensor
    mask: Tensor


class KeptWeights(NamedTuple):
    """The rows of the projection for the tokens of `Shortlist`, kept from step to step.

    Attributes:
        weights: Rows [listed, d_model], as far as earlier steps wrote them.
        new: Token ids whose rows are still missing, int64 [new].
        places: Where they belong in `weights`, int64 [new, 1].
    """

    weights: Tensor
    new: Tensor
    places: Tensor


def top_tokens(
    x: Tensor,
    projection: Tensor,
    bias: Tensor | None,
    inputs: HeadInputs,
    shortlist: Shortlist | None = None,
    kept: KeptWeights | None = None,
    *,
    graded: bool = False,
) -> list[Tensor]:
    """Returns the most probable tokens of some rows.

    Logit edits come before the softmax, so forbidden tokens give their probability to the rest. This is exact over the
    whole vocabulary, although only the candidates leave the device.

    Args:
        x: Hidden states [rows, d_model].
        projection: Projection from hidden states to logits [vocabulary, d_model].
        bias: Bias of the logits [vocabulary].
        inputs: Which rows, and how each of them chooses.
        shortlist: None for the whole vocabulary. Otherwise all ids, those of edits included, are indices into a row's
            own list.
        kept: The weights of the shortlist's tokens; None to gather all of them in every step.
        graded: Whether the bias has other values than 0 and -inf, so that a temperature changes it.

    Returns:
        Log-probabilities float32 [n, k] and ids int64 [n, k], best first, and log-probabilities float32 [n, edits] of
        the edited tokens; then the completed weights if some are kept, which are the same memory if the caller binds
        them so.
    """
    x = gather_rows(x, inputs.rows)
    # A temperature divides the logits. Dividing the hidden states is the same and far cheaper, but could overflow in
    # half precision.
    late = graded or x.dtype != torch.float32
    if not late:
        x = x * inputs.scales
    written: list[Tensor] = []
    if shortlist is None:
        logits = functional.linear(x, projection, bias).float()  # [n, vocabulary]
    else:
        listed_bias = None if bias is None else bias.gather(0, shortlist.tokens)
        if kept is None:
            weights = gather_rows(projection, shortlist.tokens)
        else:  # gathering all rows takes as long as the product, and few are new in a step
            weights = scatter_rows(kept.weights, kept.places, gather_rows(projection, kept.new))
            written.append(weights)
        logits = functional.linear(x, weights, listed_bias).float()  # [n, listed]
        logits = logits.gather(1, shortlist.columns) + shortlist.mask  # [n, own]
    if late:
        logits = logits * inputs.scales
    before = logits.gather(1, inputs.edit_ids)
    penalties = inputs.edit_penalties
    after = torch.where(before > 0, before / penalties, before * penalties) + inputs.edit_offsets
    log_probabilities = logits.scatter(1, inputs.edit_ids, after).log_softmax(-1)
    return [*top_k(log_probabilities, inputs.k), log_probabilities.gather(1, inputs.edit_ids), *written]


def mean_attention(query: Tensor, keys: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
    """Returns the attention of some rows to the source, averaged over the heads.

    Args:
        query: Queries [rows, d_model], already scaled.
        keys: Keys of the source [rows, heads, capacity, d_head].
        lengths: Source lengths, int32 [rows].
        rows: Row numbers, int64 [n].

    Returns:
        Attention weights float32 [n, capacity], 0 beyond the source.
    """
    heads, capacity, d_head = keys.shape[1:]
    chosen = gather_rows(query, rows).reshape(-1, heads, 1, d_head)
    scores = chosen @ keys.index_select(0, rows).transpose(-2, -1)  # [n, heads, 1, capacity]
    beyond = torch.arange(capacity, dtype=torch.int32) >= lengths.gather(0, rows).reshape(-1, 1, 1, 1)
    weights = scores.float().masked_fill(beyond, -torch.inf).softmax(-1).squeeze(2)  # [n, heads, capacity]
    # A product, because ONNX Runtime's ReduceMean sums in another order when there is only one row. NOTE: the left
    # factor is gathered for every row. If rows shared one, CUDA would be given host addresses, and a CUDA graph
    # (CudaGraphStep) would read them again after they are freed.
    averaging = torch.full((1, 1, heads), 1 / heads).index_select(0, rows - rows)  # [n, 1, heads]
    return (averaging @ weights).squeeze(1)
