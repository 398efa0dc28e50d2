"""Random models in Marian's own format, and what transformers' converter makes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from transformers.models.marian import MarianConfig, MarianMTModel

from tests.support.huggingface_directories import SIZE, pieces, train

Arrays = dict[str, NDArray[Any]]

# Options as Marian writes them into a model, without those of training.
OPTIONS: dict[str, Any] = {
    "type": "transformer",
    "dim-emb": 32,
    "transformer-heads": 4,
    "transformer-dim-ffn": 48,
    "transformer-decoder-dim-ffn": 0,
    "enc-depth": 2,
    "dec-depth": 3,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-guided-alignment-layer": "last",
    "transformer-tied-layers": [],
    "tied-embeddings": False,
    "tied-embeddings-src": False,
    "tied-embeddings-all": True,
    "lemma-dim-emb": 0,
    "right-left": False,
    "version": "v1.12.0",
}
PRE_NORM = {
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-top": "n",
    "transformer-postprocess-emb": "nd",
}
SPLIT = {"tied-embeddings-all": False, "tied-embeddings": True}
SHARPNESS = 8.0  # of attention; else the last token alone decides on the next one
END_BONUS = 1.0  # logits; so that answers end


def write_vocabularies(folder: Path, *, split: bool = False) -> tuple[int, int]:
    """Writes vocab.yml, or one of each side, and source.spm and target.spm; returns the numbers of tokens."""
    source, target = train("unigram"), train("unigram", SIZE - 200)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    sides = {"src.vocab.yml": pieces(source), "trg.vocab.yml": pieces(target)}
    if not split:
        sides = {"opus.vocab.yml": list(dict.fromkeys(pieces(source) + pieces(target)))}
    sizes = []
    for name, tokens in sides.items():
        every = ["</s>", "<unk>", *tokens]
        # Marian quotes some tokens, and orders lines by token, not by id.
        lines = [f'"{token}": {index}' if index % 3 else f"{token}: {index}" for index, token in enumerate(every)]
        (folder / name).write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
        sizes.append(len(every))
    return sizes[0], sizes[-1]


def random_arrays(options: dict[str, Any], vocabularies: tuple[int, int]) -> Arrays:
    """Returns the arrays of a random model, with values spread wide enough that mistakes show."""
    draw = np.random.default_rng(1)
    width, inner = options["dim-emb"], options["transformer-dim-ffn"]
    arrays: Arrays = {}

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        arrays[name] = (draw.normal(size=(rows, columns)) * scale / rows**0.5).astype(np.float32)

    def vector(name: str, size: int, middle: float = 0.0) -> None:
        arrays[name] = (middle + 0.3 * draw.normal(size=(1, size))).astype(np.float32)

    def norm(name: str, suffix: str = "") -> None:
        vector(f"{name}_ln_scale{suffix}", width, 1.0)
        vector(f"{name}_ln_bias{suffix}", width)

    pre = "n" in options["transformer-preprocess"]
    suffix = "_pre" if pre else ""
    for stack, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        wide = options["transformer-decoder-dim-ffn"] if stack == "decoder" else 0
        for layer in range(1, depth + 1):
            prefix = f"{stack}_l{layer}"
            for part in ("self", "context") if stack == "decoder" else ("self",):
                for role in "qkvo":
                    matrix(f"{prefix}_{part}_W{role}", width, width, SHARPNESS if role in "qo" else 1.0)
                    vector(f"{prefix}_{part}_b{role}", width)
                norm(f"{prefix}_{part}_Wo", suffix)
            for number, (rows, columns) in enumerate(((width, wide or inner), (wide or inner, width)), 1):
                matrix(f"{prefix}_ffn_W{number}", rows, columns)
                vector(f"{prefix}_ffn_b{number}", columns)
            norm(f"{prefix}_ffn_ffn", suffix)
        if "n" in options["transformer-postprocess-emb"]:
            norm(f"{stack}_emb", "_pre")
        if pre:
            norm(f"{stack}_top")
    source, target = vocabularies
    if options["tied-embeddings-all"] or options["tied-embeddings-src"]:
        tables = {"Wemb": source}
    else:
        tables = {"encoder_Wemb": source, "decoder_Wemb": target}
    for name, rows in tables.items():
        arrays[name] = (draw.normal(size=(rows, width)) * width**-0.5).astype(np.float32)
    if not (options["tied-embeddings-all"] or options["tied-embeddings"]):
        matrix("decoder_ff_logit_out_W", width, target)
    vector("decoder_ff_logit_out_b", target)
    arrays["decoder_ff_logit_out_b"][0, 0] += END_BONUS
    return arrays


def write_npz(path: Path, options: dict[str, Any], arrays: Arrays) -> Path:
    """Writes the file as Marian does: the options are bytes that end with a NUL."""
    text = yaml.safe_dump(options).encode() + b"\0"
    np.savez(path, **arrays, **{"special:model.yml": np.frombuffer(text, np.int8)})  # type: ignore[arg-type]
    return path


@torch.no_grad()
def by_transformers_rules(options: dict[str, Any], arrays: Arrays) -> MarianMTModel:
    """Returns the model of transformers' convert_marian_to_pytorch: the same layout, a zero row for the start token.

    Its errors are corrected: sinusoids and the epsilon of layer norms are Marian's.
    """
    width, tied = options["dim-emb"], options["tied-embeddings-all"] or options["tied-embeddings-src"]
    tables = [arrays["Wemb"]] * 2 if tied else [arrays["encoder_Wemb"], arrays["decoder_Wemb"]]
    source, target = (np.vstack([table, np.zeros((1, width), np.float32)]) for table in tables)
    config = MarianConfig(
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        share_encoder_decoder_embeddings=tied,
        tie_word_embeddings=options["tied-embeddings-all"] or options["tied-embeddings"],
        encoder_layers=options["enc-depth"],
        decoder_layers=options["dec-depth"],
        encoder_attention_heads=options["transformer-heads"],
        decoder_attention_heads=options["transformer-heads"],
        encoder_ffn_dim=options["transformer-dim-ffn"],
        decoder_ffn_dim=options["transformer-decoder-dim-ffn"] or options["transformer-dim-ffn"],
        d_model=width,
        activation_function=options["transformer-ffn-activation"],
        pad_token_id=min(len(source), len(target)) - 1,
        decoder_start_token_id=len(target) - 1,
        eos_token_id=0,
        bos_token_id=0,
        forced_eos_token_id=None,
        max_position_embeddings=512,
        scale_embedding=True,
    )
    model: Any = MarianMTModel(config)
    names = {"self_attn": "self", "encoder_attn": "context"}
    for stack, part in (("encoder", model.model.encoder), ("decoder", model.model.decoder)):
        positions = np.arange(512)[:, None] * 10_000.0 ** (-np.arange(width // 2) / (width // 2 - 1))
        part.embed_positions.weight.copy_(torch.tensor(np.hstack([np.sin(positions), np.cos(positions)])))
        for number, layer in enumerate(part.layers, 1):
            prefix = f"{stack}_l{number}"
            for attribute, name in names.items():
                if hasattr(layer, attribute):
                    for role in "qkvo":
                        linear = getattr(getattr(layer, attribute), f"{'out' if role == 'o' else role}_proj")
                        _copy(linear, arrays[f"{prefix}_{name}_W{role}"].T, arrays[f"{prefix}_{name}_b{role}"])
                    _norm(getattr(layer, f"{attribute}_layer_norm"), arrays, f"{prefix}_{name}_Wo")
            for role, linear in (("1", layer.fc1), ("2", layer.fc2)):
                _copy(linear, arrays[f"{prefix}_ffn_W{role}"].T, arrays[f"{prefix}_ffn_b{role}"])
            _norm(layer.final_layer_norm, arrays, f"{prefix}_ffn_ffn")
    model.model.encoder.embed_tokens.weight.copy_(torch.from_numpy(source))
    model.model.decoder.embed_tokens.weight.copy_(torch.from_numpy(target))
    if config.tie_word_embeddings:
        model.lm_head.weight.copy_(torch.from_numpy(target))
    else:
        model.lm_head.weight.zero_()
        model.lm_head.weight[:-1] = torch.from_numpy(arrays["decoder_ff_logit_out_W"].T)
    model.final_logits_bias = torch.from_numpy(
        np.hstack([arrays["decoder_ff_logit_out_b"], np.zeros((1, 1), np.float32)])
    )
    return model.eval()


def _copy(module: Any, weight: NDArray[Any], bias: NDArray[Any]) -> None:
    module.weight.copy_(torch.from_numpy(weight.copy()))
    module.bias.copy_(torch.from_numpy(bias[0]))


def _norm(module: Any, arrays: Arrays, name: str) -> None:
    _copy(module, arrays[f"{name}_ln_scale"][0], arrays[f"{name}_ln_bias"])
    module.eps = 1e-6
