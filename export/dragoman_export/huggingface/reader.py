"""Reads a Hugging Face model as the original of a bundle."""

from collections.abc import Callable, Collection

from dragoman_export.huggingface.assembly import assemble, check_end, limits_of, special_tokens, with_targets
from dragoman_export.huggingface.generation import generation_part, read_generation
from dragoman_export.huggingface.hub import resolve
from dragoman_export.huggingface.library_logits import compare_with_library
from dragoman_export.huggingface.model import read_config, read_model
from dragoman_export.huggingface.text import read_text
from dragoman_export.original import Original


def read_original(name: str, revision: str | None, ignore: Collection[str], say: Callable[[str], None]) -> Original:
    """Reads a model.

    Args:
        name: A directory, or a repository of the hub.
        revision: Branch, tag or commit of the repository; the newest commit if None.
        ignore: Generation settings to ignore although they would change tokens.
        say: Prints a line for the user.

    Raises:
        ExportError: The model cannot be found, read or imported.
    """
    folder, origin = resolve(name, revision)
    say(f"reading {folder}")
    config = read_config(folder)
    settings = read_generation(folder, config, ignore)
    text = with_targets(read_text(folder), settings.start, settings.forced_first)
    check_end(str(folder), text, settings.end)
    model = read_model(folder, config)
    library, difference = compare_with_library(folder, config, model)
    say(f"the model has the logits of {library}; largest difference {difference:.1e}")
    return assemble(
        name,
        model,
        text,
        special_tokens(text, pad=config.pad_token_id, begin=settings.start, end=settings.end),
        generation_part(settings, limits_of(model).max_target_tokens, forces_language=text.forces_language),
        origin,
        {"library": library, "largest_logit_difference": difference},
    )
