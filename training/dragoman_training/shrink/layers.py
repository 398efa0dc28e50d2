"""Leaves layers out of a trained model, one after the other, each time the one that the loss misses least."""

from collections.abc import Callable

from torch import nn

from dragoman_training.model import Transformer


def drop_layers(
    model: Transformer, encoder_layers: int, decoder_layers: int, loss: Callable[[], float], say: Callable[[str], None]
) -> tuple[list[int], list[int]]:
    """Removes layers from a model in place.

    Args:
        encoder_layers, decoder_layers: Layers to keep in each stack.
        loss: Computes the loss of the model as it is.
        say: Is told of each layer that is left out.

    Returns:
        The indices of the layers that are left, in the encoder and in the decoder.
    """
    kept = []
    for name, count in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        stack = model.get_submodule(name)
        indices = list(range(len(stack.layers)))  # type: ignore[arg-type]
        while len(indices) > count:
            layers = list(stack.layers)  # type: ignore[arg-type]
            losses = []
            for index in range(len(layers)):
                stack.layers = nn.ModuleList(layers[:index] + layers[index + 1 :])
                losses.append(loss())
            least = min(range(len(losses)), key=losses.__getitem__)
            stack.layers = nn.ModuleList(layers[:least] + layers[least + 1 :])
            say(f"{name} layer {indices.pop(least)} left out: loss {losses[least]:.3f}")
        kept.append(indices)
    return kept[0], kept[1]
