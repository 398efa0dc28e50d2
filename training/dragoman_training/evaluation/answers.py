"""The answers of a model to many texts."""

from collections.abc import Callable, Iterable

from dragoman_training.data.encode import Tokenizers
from dragoman_training.evaluation.decoding import GREEDY, Search, Task, decode
from dragoman_training.model import Transformer
from dragoman_training.processes import ALONE, Processes

BATCH_TOKENS = 4096  # rows x longest source of a batch: with greedy search 250 words, or 150 to 300 sentences


def answer(
    model: Transformer,
    tokenizers: Tokenizers,
    texts: Iterable[str],
    search: Search = GREEDY,
    *,
    before_step: Callable[[], object] = lambda: None,
    answered: Callable[[int, int], object] = lambda count, total: None,
    processes: Processes = ALONE,
) -> dict[str, str]:
    """Decodes distinct texts in batches of similar length.

    Args:
        model: Model in eval mode.
        before_step: Callback that runs before each step of a batch; an exception it raises ends the work.
        answered: Callback that is told after each batch how many texts are answered, and of how many.
        processes: Processes that share the batches.

    Returns:
        The answer to each text.
    """
    distinct = list(dict.fromkeys(texts))
    encoded = dict(zip(distinct, tokenizers.encode_sources(distinct), strict=True))
    distinct.sort(key=lambda text: len(encoded[text]), reverse=True)
    special = tokenizers.special
    batches: list[list[str]] = []
    begin = 0
    while begin < len(distinct):
        rows = max(1, BATCH_TOKENS // (search.beam_size * len(encoded[distinct[begin]])))
        batches.append(distinct[begin : begin + rows])
        begin += rows

    def share() -> dict[str, str]:
        answers: dict[str, str] = {}
        for batch in batches[processes.rank :: processes.count]:
            task = Task([encoded[text] for text in batch], [tokenizers.target_start(text) for text in batch], special)
            ids = decode(model, task, model.config.max_target_length, search, before_step=before_step)
            answers.update(zip(batch, tokenizers.target.decode_batch(ids), strict=True))
            # The others are about as far.
            answered(min(len(answers) * processes.count, len(distinct)), len(distinct))
        return answers

    return {text: answer for part in processes.all_do(share) for text, answer in part.items()}
