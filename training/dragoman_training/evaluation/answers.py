"""The answers of a model to many texts."""

from collections.abc import Callable, Iterable

from tokenizers import Tokenizer

from dragoman_training.evaluation.decoding import GREEDY, Search, decode
from dragoman_training.model import Transformer

BATCH_TOKENS = 4096  # rows x longest source of a batch: with greedy search 250 words, or 150 to 300 sentences


def answer(
    model: Transformer,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    texts: Iterable[str],
    search: Search = GREEDY,
    *,
    before_step: Callable[[], object] = lambda: None,
    answered: Callable[[int, int], object] = lambda count, total: None,
) -> dict[str, str]:
    """Decodes distinct texts in batches of similar length.

    Args:
        model: Model in eval mode.
        before_step: Callback that runs before each step of a batch; an exception it raises ends the work.
        answered: Callback that is told after each batch how many texts are answered, and of how many.

    Returns:
        The answer to each text.
    """
    distinct = list(dict.fromkeys(texts))
    encoded = {text: e.ids for text, e in zip(distinct, source_tokenizer.encode_batch(distinct), strict=True)}
    distinct.sort(key=lambda text: len(encoded[text]), reverse=True)
    answers: dict[str, str] = {}
    while len(answers) < len(distinct):
        done = len(answers)
        rows = max(1, BATCH_TOKENS // (search.beam_size * len(encoded[distinct[done]])))
        batch = distinct[done : done + rows]
        ids = decode(
            model, [encoded[text] for text in batch], model.config.max_target_length, search, before_step=before_step
        )
        answers.update(zip(batch, target_tokenizer.decode_batch(ids), strict=True))
        answered(len(answers), len(distinct))
    return answers
