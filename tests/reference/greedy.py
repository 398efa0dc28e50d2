"""Greedy decoding without a cache: slow and simple, the reference for all faster decoders."""

from collections.abc import Sequence

import torch

from dragoman_training.data.batches import pad
from dragoman_training.data.tokenizers import BEGIN_ID, END_ID
from dragoman_training.model import Transformer


@torch.no_grad()
def greedy(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    max_tokens: int,
    begin: Sequence[int] = (BEGIN_ID,),
    end: int = END_ID,
) -> list[list[int]]:
    """Decodes one batch, taking the most probable token at each step.

    Args:
        model: Model in eval mode.
        sources: Token ids of each row, with the end token.
        max_tokens: Limit at which a row is cut.
        begin: First decoder inputs: the begin token, and tokens that all answers start with.
        end: Last token of a target.

    Returns:
        The target ids of each row, without begin and end token.
    """
    device = next(model.parameters()).device
    memory, mask = model.encode(pad(sources, model.pad).to(device))  # [rows, source, d_model], [rows, 1, 1, source]
    target = torch.tensor([begin] * len(sources), device=device)  # [rows, first inputs], one column more per step
    ended = torch.zeros(len(sources), dtype=torch.bool, device=device)  # [rows]
    for _ in range(max_tokens + 1 - len(begin)):
        token = model.decoder(target, memory, mask)[0][:, -1].argmax(-1)  # [rows]
        token = token.masked_fill(ended, end)
        ended |= token == end
        target = torch.cat([target, token[:, None]], 1)
        if ended.all():
            break
    rows = [row[1:] for row in target.tolist()]
    return [row[: row.index(end)] if end in row else row for row in rows]
