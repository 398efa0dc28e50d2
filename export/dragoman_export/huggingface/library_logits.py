"""Compares an imported model with the library's own."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.library import reason
from dragoman_training.data.batches import pad as padded
from dragoman_training.model import Transformer

LENGTHS = (1, 9, 24)  # tokens of the compared sources, whose batch is padded
TARGET = 12
TOLERANCE = 1e-4  # of the largest logit; a wrong switch or weight changes far more
ROUNDING_FACTOR = 10  # times what rounding to single precision changes, which for some models is more


@torch.no_grad()
def compare_with_library(folder: Path, config: Any, model: Transformer) -> tuple[str, float]:
    """Runs a model and the library's own on the same random tokens.

    Args:
        folder: Directory of the model.
        config: The configuration from `read_config`.
        model: The model as imported.

    Returns:
        Name and version of the library, and the largest difference of logits.

    Raises:
        ExportError: The logits differ, or the library cannot load the model.
    """
    library = f"transformers {version('transformers')}"
    theirs = _load(folder, config, library)
    torch.manual_seed(0)
    source_tokens, target_tokens = model.encoder.embedding.tokens.num_embeddings, model.decoder.projection.out_features
    usable = torch.arange(source_tokens)[torch.arange(source_tokens) != model.pad]
    longest = min(max(LENGTHS), model.config.max_source_length)
    rows = [usable[torch.randint(len(usable), (min(length, longest),))].tolist() for length in LENGTHS]
    source = padded(rows, model.pad)
    target = torch.randint(target_tokens, (len(LENGTHS), min(TARGET, model.config.max_target_length)))
    target[target == model.pad] = usable[usable < target_tokens][0]
    expected = theirs(
        input_ids=source, attention_mask=(source != model.pad).long(), decoder_input_ids=target, use_cache=False
    ).logits
    del theirs
    if not expected.isfinite().all():
        raise ExportError(f"{folder}: the logits of {library} are not finite numbers; the weights are damaged")
    logits = model(source, target)
    difference, allowed = (logits - expected).abs().max().item(), TOLERANCE * max(1.0, expected.abs().max().item())
    if not difference <= allowed:
        exact = model.double()(source, target)
        model.float()  # restores every number
        allowed = max(allowed, ROUNDING_FACTOR * (logits - exact).abs().max().item())
    if not difference <= allowed:
        raise ExportError(
            f"{folder}: the imported model's logits differ from those of {library} by {difference:.2g}; "
            f"expected at most {allowed:.2g}"
        )
    return library, difference


def _load(folder: Path, config: Any, library: str) -> Any:
    from transformers.models.auto import AutoModelForSeq2SeqLM

    try:
        return AutoModelForSeq2SeqLM.from_pretrained(
            folder, config=config, local_files_only=True, dtype=torch.float32
        ).eval()
    except Exception as error:  # the library raises various types
        raise ExportError(f"{folder}: {library} itself cannot load the model ({reason(error)})") from None
