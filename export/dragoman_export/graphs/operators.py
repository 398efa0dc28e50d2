"""ONNX operators that PyTorch lacks, as functions that `torch.onnx.export` writes as one node each.

They compute nothing in PyTorch: a module that calls them can only be exported.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.onnx import ops

OPSET = 24

Attribute = int | float | str | bool | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    lengths: Tensor,
    *,
    bias: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Writes `Attention`: each query attends to the first `lengths` keys of its row, or to all keys up to its position.

    Args:
        query, key, value: [rows, length, heads * d_head], or [rows, heads, length, d_head] each. The query is already
            scaled.
        heads: Number of heads.
        lengths: int64 [rows]; unused when `causal`.
        bias: Added to the scores, broadcastable to [rows, heads, queries, keys].
        causal: Whether each query attends to all keys up to its own position.

    Returns:
        The attended values in the shape of `query`, and the scores [rows, heads, queries, keys] before the softmax,
        those beyond `lengths` included. `graphs.trace` removes scores that nothing uses.
    """
    attributes: dict[str, Attribute] = {"scale": 1.0}
    if query.dim() == 3:
        attributes |= {"q_num_heads": heads, "kv_num_heads": heads}
    if causal:
        attributes["is_causal"] = 1
    if query.dtype != torch.float32:
        attributes["softmax_precision"] = 1  # TensorProto.FLOAT
    inputs = [query, key, value, bias] if causal else [query, key, value, bias, None, None, lengths]
    rows, queries, keys = query.shape[0], query.shape[-2], key.shape[-2]
    attended, _, _, scores = ops.symbolic_multi_out(
        "Attention",
        inputs,
        attributes | {"qk_matmul_output_mode": 0},  # the last output: on CUDA, ONNX Runtime has no weights there
        dtypes=[query.dtype] * 4,
        shapes=[query.shape, key.shape, value.shape, (rows, heads, queries, keys)],
        version=OPSET,
    )
    return attended, scores


def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    last: Tensor,
    capacity: Tensor,
    heads: int,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes `com.microsoft.GroupQueryAttention`: stores key and value at index `last` of each row, attends to 0..last.

    Args:
        query: [rows, 1, width] where width is heads * d_head, or [rows, 1, 3 * width] with key and value appended (they
            are None then). It is already scaled.
        key, value: [rows, 1, width].
        key_cache, value_cache: [rows, heads, capacity, d_head].
        last: int32 [rows].
        capacity: Length of the caches, int32 scalar. ONNX Runtime takes it for the longest sequence's length. NOTE: it
            may be too large but must not be 1 with a one-token query, which would mean a first prompt.
        heads: Number of heads.
        bias: Added to the scores [rows, heads, 1, capacity].

    Returns:
        Attended values [rows, 1, width] and the caches, which are the same memory if the caller binds them so.
    """
    rows = query.shape[0]
    output, keys, values = ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        [
            query,
            key,
            value,
            key_cache,
            value_cache,
            last,
            capacity,
            *([] if bias is None else [None, None, None, bias]),
        ],
        {"num_heads": heads, "kv_num_heads": heads, "scale": 1.0},
        dtypes=[query.dtype, key_cache.dtype, value_cache.dtype],
        shapes=[[rows, 1, heads * key_cache.shape[-1]], key_cache.shape, value_cache.shape],
        version=1,
    )
    return output, keys, values


def tensor_scatter(cache: Tensor, update: Tensor, index: Tensor) -> Tensor:
    """Writes `TensorScatter`: stores new entries in a cache.

    Args:
        cache: [rows, heads, capacity, d_head].
        update: [rows, heads, 1, d_head].
        index: int64 [rows].

    Returns:
        The cache, which is the same memory if the caller binds it so.
    """
    return ops.symbolic(
        "TensorScatter", [cache, update, index], {"axis": 2}, dtype=cache.dtype, shape=cache.shape, version=OPSET
    )


def scatter_rows(x: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """Writes `ScatterND`: stores rows in a matrix.

    Args:
        x: [length, width].
        places: int64 [n, 1].
        rows: [n, width].

    Returns:
        The matrix, which is the same memory if the caller binds it so.
    """
    return ops.symbolic("ScatterND", [x, places, rows], {}, dtype=x.dtype, shape=x.shape, version=18)


def top_k(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Writes `TopK`, largest first: x [rows, width], k int64 [1] -> values and int64 indices, [rows, k]."""
    # NOTE: k is known only when the graph runs. The width replaces it here and is renamed in the exported graph.
    values, indices = ops.symbolic_multi_out(
        "TopK", [x, k], {"axis": -1}, dtypes=[x.dtype, torch.int64], shapes=[x.shape, x.shape], version=24
    )
    return values, indices
