"""Greedy decoding without a KV cache: slow and simple, the reference for all faster decoders."""

from collections.abc import Callable, Iterable, Sequence

import torch
from tokenizers import Tokenizer

from dragoman_training.data.batches import pad
from dragoman_training.data.tokenizers import BEGIN_ID, END_ID
from dragoman_training.model import Transformer

BATCH_TOKENS = 8192  # rows x longest source of a batch: about 500 words, or 100 sentences


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


def answer(
    model: Transformer,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    before_batch: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Decodes distinct texts in batches of similar length.

    Args:
        model: Model in eval mode.
        before_batch: Callback that runs before each batch; an exception it raises ends the work.

    Returns:
        The answer to each text.
    """
    distinct = list(dict.fromkeys(texts))
    encoded = {text: e.ids for text, e in zip(distinct, source_tokenizer.encode_batch(distinct), strict=True)}
    distinct.sort(key=lambda text: len(encoded[text]), reverse=True)
    answers: dict[str, str] = {}
    while len(answers) < len(distinct):
        before_batch()
        done = len(answers)
        chunk = distinct[done : done + max(1, BATCH_TOKENS // len(encoded[distinct[done]]))]
        rows = greedy(model, [encoded[text] for text in chunk], model.config.max_target_length)
        answers.update(zip(chunk, target_tokenizer.decode_batch(rows), strict=True))
    return answers
