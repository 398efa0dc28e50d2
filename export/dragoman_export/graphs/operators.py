"""The ONNX operators that PyTorch has no name for, as functions that `torch.onnx.export` writes as one node each.

They compute nothing in PyTorch: a module that calls them exists to be exported.
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
    """`Attention`: every query looks at the first `lengths` keys of its row, or at all keys up to its own place.

    Args:
        query, key, value: [rows, length, heads * d_head], or [rows, heads, length, d_head] each. The query holds the
            scale.
        lengths: int64 [rows]; not looked at where each query looks up to its own place.
        bias: added to the scores, broadcastable to [rows, heads, queries, keys].

    Returns:
        the shape of `query`, and the scores [rows, heads, queries, keys] that the softmax makes shares of, those beyond
        `lengths` included. Scores that nobody uses are not written, see export.onnx_files.trace.
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
        attributes | {"qk_matmul_output_mode": 0},  # the last output: ONNX Runtime has no shares there on CUDA
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
    """`com.microsoft.GroupQueryAttention`: writes key and value at index `last` of each row, then looks at 0..last.

    Args:
        query: [rows, 1, width], width being heads * d_head, or [rows, 1, 3 * width] with key and value behind it (they
            are None then). It holds the scale.
        key, value: [rows, 1, width]
        key_cache, value_cache: [rows, heads, capacity, d_head]
        last: int32 [rows]
        capacity: int32 scalar, the caches' length. ONNX Runtime takes it for the longest sequence's length; it may be
            too large but must not be 1 with a one-token query, which would mean a first prompt.
        bias: added to the scores, [rows, heads, 1, capacity].

    Returns:
        attended values [rows, 1, width] and the caches, which are the same memory where the caller binds it so.
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
    """`TensorScatter`: a cache with new entries.

    Args:
        cache: [rows, heads, capacity, d_head]
        update: [rows, heads, 1, d_head]
        index: int64 [rows]

    Returns:
        the cache, which is the same memory where the caller binds it so.
    """
    return ops.symbolic(
        "TensorScatter", [cache, update, index], {"axis": 2}, dtype=cache.dtype, shape=cache.shape, version=OPSET
    )


def top_k(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """`TopK`, largest first: x [rows, width], k int64 [1] -> values and int64 indices, [rows, k]."""
    # NOTE: k is known only when the graph runs; the width stands in for it here and is renamed in the exported graph.
    values, indices = ops.symbolic_multi_out(
        "TopK", [x, k], {"axis": -1}, dtypes=[x.dtype, torch.int64], shapes=[x.shape, x.shape], version=24
    )
    return values, indices
