"""CTranslate2 decodes the benchmark's weights to the same greedy tokens, so the benchmark compares like with like."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman_export.bundle.weights import fill_model, load_model, read_weights
from dragoman_export.graphs import DecoderStep, SourceEncoder, fold_model
from dragoman_export.graphs.interface import decoder_interface, encoder_interface
from dragoman_export.graphs.trace import trace
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import Shape
from dragoman_training.model import ModelConfig, Transformer
from tests.benchmark.translator import CTranslate2
from tests.reference.greedy import greedy
from tests.support.bundles import SHIPPED_FP32, SHIPPED_G2P
from tests.support.ctranslate2_model import convert
from tests.support.onnx_models import complete
from tests.support.random_model import symbol_tokenizer, vary_answers

SOURCE_TOKENS, TARGET_TOKENS, ROWS = 11, 12, 24
SHAPE: dict[str, Any] = {
    "d_model": 16,
    "heads": 2,
    "d_ff": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "max_source_length": SOURCE_TOKENS,
    "max_target_length": TARGET_TOKENS,
}


CHOICES = [
    {"norm": "post", "activation": "relu", "share_embeddings": "all"},
    {"norm": "pre", "activation": "gelu", "share_embeddings": "output"},
    {"norm": "pre", "activation": "swiglu", "share_embeddings": "none", "positions": "learned"},
]


def name(choice: dict[str, str]) -> str:
    return "-".join(choice.values())


def vocabularies(config: ModelConfig) -> tuple[int, int]:
    """Returns the sizes of source and target vocabulary."""
    return (40, 40) if config.share_embeddings == "all" else (40, 50)


def random_model(config: ModelConfig) -> Transformer:
    """Returns a model in which every parameter has an effect, biases and norms too."""
    torch.manual_seed(5)
    model = Transformer(config, *vocabularies(config), pad=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        vary_answers(model)
    return model


def random_sources(vocabulary: int) -> list[list[int]]:
    """Returns token ids of every length up to the limit, but 1: CTranslate2 answers a lone end token by itself."""
    torch.manual_seed(6)
    return [[*torch.randint(4, vocabulary, (1 + i % (SOURCE_TOKENS - 1),)).tolist(), 3] for i in range(ROWS)]


def onnx_shape(config: ModelConfig) -> Shape:
    """Returns the shape as in a manifest."""
    source, target = vocabularies(config)
    return Shape(
        d_model=config.d_model,
        heads=config.heads,
        d_head=config.d_model // config.heads,
        d_ff=config.d_ff,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        source_vocabulary=source,
        target_vocabulary=target,
        parameters=1,
    )


@pytest.mark.parametrize("choice", CHOICES, ids=name)
def test_greedy_tokens_are_the_same(choice: dict[str, str], tmp_path: Path) -> None:
    model = random_model(ModelConfig.model_validate(SHAPE | choice))
    source, target = map(symbol_tokenizer, vocabularies(model.config))
    convert(model, source, target, tmp_path)

    rows = random_sources(source.get_vocab_size())
    tokens = [[source.id_to_token(i) or "" for i in row] for row in rows]
    answers = CTranslate2(tmp_path, tokens, TARGET_TOKENS, "float32", inter_threads=1, intra_threads=1).answers()
    expected = greedy(model, rows, TARGET_TOKENS)
    assert [[target.token_to_id(token) for token in answer] for answer in answers] == expected
    assert len({tuple(row) for row in expected}) > ROWS // 2  # the answers depend on the sources


@pytest.mark.parametrize("choice", CHOICES[::2], ids=name)
def test_weights_can_be_read_from_the_graphs(choice: dict[str, str]) -> None:
    config = ModelConfig.model_validate(SHAPE | choice)
    model = random_model(config)
    exported, shape = fold_model(model), onnx_shape(config)
    encoder = trace(SourceEncoder(exported, last=True), encoder_interface(shape, "fp32", "ort"))
    decoder = trace(DecoderStep(exported, "ort"), decoder_interface(shape, "fp32", "ort"))

    read = Transformer(config, *vocabularies(config), pad=0)
    fill_model(read, *(read_weights(complete(graph).graph) for graph in (encoder, decoder)))
    torch.testing.assert_close(read.state_dict(), model.state_dict())


def test_quantised_weights_can_be_read() -> None:
    """Nearly all 7-bit weights of the shipped bundle are within half a step of the same model in fp32."""
    integers, full = (load_model(load_bundle(path)).state_dict() for path in (SHIPPED_G2P, SHIPPED_FP32))
    assert integers.keys() == full.keys()
    for name_, values in full.items():
        step = float(values.abs().max()) / 63
        error = (integers[name_] - values).abs()
        assert float((error <= 0.51 * step).float().mean()) > 0.995, name_  # the others are clipped
        assert float(error.norm()) < 0.02 * float(values.norm()), name_
