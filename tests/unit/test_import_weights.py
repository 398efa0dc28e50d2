"""Imported weights of every Hugging Face family give the library's own logits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto import AutoConfig, AutoModelForSeq2SeqLM

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.model import read_config, read_model
from dragoman_training.model import Transformer
from dragoman_training.model.parts import position_table

BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "vocab_size": 37,
    "max_position_embeddings": 20,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "decoder_start_token_id": 0,
    "init_std": 0.3,
}
SPLIT = BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 41}
FSMT = BART | {"src_vocab_size": 37, "tgt_vocab_size": 41, "langs": ["a", "b"], "pad_token_id": 1}
del FSMT["vocab_size"]
T5 = {
    "d_model": 16,
    "d_kv": 6,
    "num_heads": 3,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "vocab_size": 37,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("marian", BART | {"activation_function": "swish"}),
    "marian-split": ("marian", SPLIT),
    "marian-three-tables": ("marian", SPLIT | {"tie_word_embeddings": False}),
    "bart": ("bart", BART),
    "plbart": ("plbart", BART),
    "mbart": ("mbart", BART),
    "m2m_100": ("m2m_100", BART | {"pad_token_id": 1}),
    "pegasus": ("pegasus", BART),
    "blenderbot": ("blenderbot", BART),
    "blenderbot-small": ("blenderbot-small", BART),
    "fsmt": ("fsmt", FSMT),
    "fsmt-tied": ("fsmt", FSMT | {"tie_word_embeddings": True, "tgt_vocab_size": 37}),
    "t5": ("t5", T5),
    "t5-1.1": ("t5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5-silu": ("t5", T5 | {"feed_forward_proj": "gated-silu"}),
    "mt5": ("mt5", T5),
    "umt5": ("umt5", T5),
}


@torch.no_grad()
def save_random_model(folder: Path, name: str, **changes: Any) -> Any:
    """Saves a random model, none of whose parameters has its initial value, and loads it back."""
    kind, shape = CASES[name]
    torch.manual_seed(1)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **shape, **changes)).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    return AutoModelForSeq2SeqLM.from_pretrained(folder).eval()  # with computed tables that are not in the file


def read(folder: Path) -> Transformer:
    return read_model(folder, read_config(folder))


@torch.no_grad()
def assert_same_logits(theirs: Any, ours: Transformer) -> None:
    pad = theirs.config.pad_token_id
    source = torch.randint(3, 37, (3, 9))
    source[1, 5:] = pad
    target = torch.randint(3, 37, (3, 8))
    mask = (source != pad).long()
    logits = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits
    assert logits.std() > 0.1
    torch.testing.assert_close(ours(source, target), logits, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_librarys(name: str, tmp_path: Path) -> None:
    assert_same_logits(save_random_model(tmp_path, name), read(tmp_path))


@pytest.mark.parametrize("name", ["marian", "t5-1.1"])
def test_shards_pickles_and_half_precision(name: str, tmp_path: Path) -> None:
    model = save_random_model(tmp_path / "whole", name)
    model.save_pretrained(tmp_path / "shards", max_shard_size="5KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert_same_logits(model, read(tmp_path / "shards"))
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text((tmp_path / "whole" / "config.json").read_text())
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    assert_same_logits(model, read(pickled))
    model.bfloat16().save_pretrained(tmp_path / "half")
    widened = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "half", dtype=torch.float32).eval()
    assert_same_logits(widened, read(tmp_path / "half"))


@pytest.mark.parametrize("kept", ["model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"])
def test_tied_table_may_have_any_of_its_names(kept: str, tmp_path: Path) -> None:
    model = save_random_model(tmp_path, "marian")
    tensors = load_file(tmp_path / "model.safetensors")
    [name] = [tensor for tensor in tensors if tensor in ("model.shared.weight", "lm_head.weight")]
    tensors[kept] = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert_same_logits(model, read(tmp_path))


def test_positions_in_the_file_override_the_formula(tmp_path: Path) -> None:
    model = save_random_model(tmp_path, "marian")
    table = torch.randn(20, 16)
    state = model.state_dict() | {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert torch.equal(position_table(read(tmp_path).encoder.embedding), table)


def test_weights_that_do_not_fit_the_configuration(tmp_path: Path) -> None:
    save_random_model(tmp_path, "bart")
    file = tmp_path / "model.safetensors"
    sound = load_file(file)

    def refused(tensors: dict[str, Any]) -> str:
        save_file(tensors, file, {"format": "pt"})
        with pytest.raises(ExportError) as error:
            read(tmp_path)
        return str(error.value)

    name = "model.encoder.layers.1.fc1.weight"
    assert refused({k: v for k, v in sound.items() if k != name}) == f"the weights lack {name}"
    assert f"weight {name} is 24 x 15, but config.json makes it 24 x 16" in refused(
        sound | {name: sound[name][:, 1:].contiguous()}
    )
    assert f"weight {name} contains numbers that are not finite" in refused(sound | {name: sound[name] / 0})
    assert "quantized checkpoints" in refused(sound | {name: sound[name].to(torch.int8)})
    extra = sound | {"adapter.weight": torch.ones(1)}
    assert refused(extra) == "the weights hold tensors that such a model does not have: adapter.weight"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ExportError, match=r"model\.safetensors: cannot be read as safetensors"):
        read(tmp_path)
    file.unlink()
    with pytest.raises(ExportError, match="no weights found"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "nllb-moe"}, "model_type 'nllb-moe' is a mixture of experts"),
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not an encoder-decoder that can be imported (bart, "),
        ({"auto_map": {"AutoModel": "mine.Model"}}, "auto_map requires the model's own code"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quantized checkpoints can't be imported"),
        ({"activation_function": "tanh"}, "activation 'tanh' is not supported; expected one of relu, gelu"),
        ({"encoder_attention_heads": 3}, "d_model (16) must be divisible by heads (3)"),
        ({"model_type": "nobody"}, "config.json: cannot be read as a configuration"),
    ],
)
def test_configurations_that_cannot_be_imported(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_random_model(tmp_path, "bart")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ExportError) as error:
        read(tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
