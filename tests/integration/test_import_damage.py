"""`dragoman-export --from-transformers` with damaged directories: one sentence names the fault, and nothing is left."""

import shutil
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import torch

from tests.support.damage import (
    FAILING,
    INDEX,
    PICKLED,
    SHARDS,
    WEIGHTS,
    Damage,
    Harmful,
    all_of,
    change,
    cut,
    empty,
    folder_for,
    harmful_pickle,
    link,
    pickled,
    remove,
    retype,
    rewrite,
    sharded,
    swap,
    take,
    weight,
    write,
)
from tests.support.forked_command import LEFT_BY_RUN, SCRATCH, Ended, forking_context, run_forked
from tests.support.huggingface_models import write_model

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
TABLE, LINEAR = "model.shared.weight", "model.encoder.layers.1.fc1.weight"
OUTSIDE = 99_999  # no token has this id

Cases = dict[str, tuple[Damage, str]]  # the damage, and what the message must contain
MARIAN: Cases = {
    # The directory.
    "empty directory": (empty, "config.json is missing"),
    "adapter": (all_of(remove(WEIGHTS), write("adapter_config.json", "{}")), "adapters can't be imported"),
    "adapter beside the model": (write("adapter_config.json", "{}"), "adapter_config.json: adapters can't"),
    # config.json.
    "no configuration": (remove(CONFIG), "config.json is missing"),
    "empty configuration": (write(CONFIG, ""), "config.json: expected a JSON object in UTF-8"),
    "configuration cut off": (cut(CONFIG, 100), "config.json: expected a JSON object in UTF-8 (Unterminated"),
    "configuration in Latin-1": (write(CONFIG, b'{"model_type": "\xe9"}'), "UTF-8 ('utf-8' codec can't decode"),
    "configuration in UTF-16": (write(CONFIG, '{"a": 1}'.encode("utf-16")), "expected a JSON object in UTF-8"),
    "configuration is a list": (write(CONFIG, "[1]"), "config.json: expected a JSON object, not [1]"),
    "configuration nests deeply": (write(CONFIG, "[" * 100_000), "expected a JSON object in UTF-8"),
    "configuration links to nothing": (link(CONFIG, "gone"), "config.json: links to gone, which is missing"),
    "configuration on a failing disk": (link(CONFIG, FAILING), "config.json: cannot be read (Input/output"),
    "no model type": (change(CONFIG, model_type=...), "Should have a `model_type` key"),
    "decoder only": (change(CONFIG, model_type="gpt2"), "model_type 'gpt2' is not an encoder-decoder"),
    "encoder only": (change(CONFIG, model_type="bert"), "model_type 'bert' is not an encoder-decoder"),
    "not an encoder-decoder": (change(CONFIG, is_encoder_decoder=False), "is_encoder_decoder is false"),
    "own code": (change(CONFIG, auto_map={"AutoModel": "own.Model"}), "auto_map requires the model's own code"),
    "quantized": (change(CONFIG, quantization_config={"bits": 4}), "quantized checkpoints can't be imported"),
    "another family": (take("bart", CONFIG), f"{TABLE} is 984 x 32, but config.json makes it 1000 x 32"),
    "another group of families": (take("t5", CONFIG), "lack encoder.block.1.layer.0.layer_norm.weight, but"),
    "another type": (change(CONFIG, model_type="bart"), "lack model.encoder.layernorm_embedding.weight"),
    "too few layers": (change(CONFIG, encoder_layers=1), f"such a model does not have: {LINEAR[:-6]}bias"),
    "too many layers": (change(CONFIG, decoder_layers=3), "config.json makes 3 decoder layers"),
    "absurdly many layers": (change(CONFIG, encoder_layers=10**9), "encoder_layers is 1000000000: Input should be"),
    "wrong width": (change(CONFIG, d_model=64), f"{TABLE} is 984 x 32, but config.json makes it 984 x 64"),
    "wrong vocabulary": (change(CONFIG, vocab_size=999), "is 984 x 32, but config.json makes it 999 x 32"),
    "absurd vocabulary": (change(CONFIG, vocab_size=10**12), "config.json: a model of such sizes can't be made"),
    "width is text": (change(CONFIG, d_model="wide"), "Field 'd_model' expected int, got str (value: 'wide')"),
    "no width": (change(CONFIG, d_model=0), "d_model is 0: Input should be greater than or equal to 8"),
    "no heads": (change(CONFIG, encoder_attention_heads=0), "encoder_attention_heads is 0: Input should be"),
    "padding outside": (change(CONFIG, pad_token_id=OUTSIDE), f"pad_token_id is {OUTSIDE}; expected a token id"),
    "negative padding": (change(CONFIG, pad_token_id=-1), "pad_token_id is -1; expected a token id from 0 to 983"),
    # generation_config.json.
    "settings cut off": (cut(GENERATION, 40), "generation_config.json: expected a JSON object in UTF-8"),
    "settings are a directory": (folder_for(GENERATION), "generation_config.json: cannot be read (Is a directory"),
    "settings link to nothing": (link(GENERATION, "gone"), "generation_config.json: links to gone, which is"),
    "beams are text": (change(GENERATION, num_beams="four"), "num_beams is 'four'; expected a number"),
    "half a beam": (change(GENERATION, num_beams=2.5), "num_beams is 2.5; expected a whole number from 1"),
    "no beam": (change(GENERATION, num_beams=0), "num_beams is 0; expected a whole number from 1"),
    "penalty is no number": (change(GENERATION, length_penalty=float("nan")), "nan; expected a number from -10"),
    "sampling at 0 degrees": (change(GENERATION, do_sample=True, temperature=0), "temperature is 0; expected a"),
    "probability above 1": (change(GENERATION, top_p=7), "top_p is 7; expected a number above 0 and up to 1"),
    "sampling is text": (change(GENERATION, do_sample="maybe"), "do_sample is 'maybe'; expected true or false"),
    "flat bad words": (change(GENERATION, bad_words_ids=[4]), "bad_words_ids is [4]; expected a list of lists"),
    "bad words outside": (change(GENERATION, bad_words_ids=[[OUTSIDE]]), f"bad_words_ids has the token id {OUTSIDE}"),
    "suppressed text": (change(GENERATION, suppress_tokens="45"), "suppress_tokens is '45'; expected a list of"),
    "suppressed outside": (change(GENERATION, begin_suppress_tokens=[-1]), "begin_suppress_tokens has the token id -1"),
    "start outside": (change(GENERATION, decoder_start_token_id=OUTSIDE), "decoder_start_token_id has the token id"),
    "forced token outside": (change(GENERATION, forced_bos_token_id=OUTSIDE), "expected one from 0 to 983"),
    "end is text": (change(GENERATION, eos_token_id="</s>"), "eos_token_id is '</s>'; expected one token id"),
    "unsupported setting": (change(GENERATION, guidance_scale={"a": 1}), "--ignore guidance_scale imports the model"),
    # Weights.
    "no weights": (remove(WEIGHTS), "no weights found; expected model.safetensors or pytorch_model.bin"),
    "weights of another library": (all_of(remove(WEIGHTS), write("tf_model.h5", "")), "no weights found; expected"),
    "empty weights": (write(WEIGHTS, ""), "model.safetensors: cannot be read as safetensors"),
    "weights cut off": (cut(WEIGHTS, 200_000), "cannot be read as safetensors (Error while deserializing header"),
    "Git's pointer to weights": (write(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"), "header too large"),
    "header is no JSON": (write(WEIGHTS, (32).to_bytes(8, "little") + b"x" * 64), "invalid JSON in header"),
    "weights on a failing disk": (link(WEIGHTS, FAILING), "model.safetensors: cannot be read as safetensors (No"),
    "weights link to nothing": (link(WEIGHTS, "gone"), "model.safetensors: links to gone, which is missing"),
    "weights of another model": (take("bart", WEIGHTS), f"{TABLE} is 1000 x 32, but config.json makes it 984 x 32"),
    "missing weight": (rewrite(lambda all_: {k: v for k, v in all_.items() if k != LINEAR}), f"lack {LINEAR}"),
    "extra weight": (rewrite(lambda all_: {**all_, "ghost": torch.ones(1)}), "such a model does not have: ghost"),
    "transposed weight": (weight(LINEAR, lambda matrix: matrix.T), f"{LINEAR} is 32 x 48, but config.json makes"),
    "weight that is no number": (weight(LINEAR, lambda matrix: matrix * torch.nan), f"{LINEAR} contains numbers"),
    "infinite weight": (weight(LINEAR, lambda matrix: matrix / 0), "contains numbers that are not finite"),
    "overflowing weight": (weight(LINEAR, lambda matrix: matrix * 1e38), "are not finite numbers; the weights are"),
    "weight in 8 bits": (weight(LINEAR, lambda matrix: matrix.to(torch.float8_e4m3fn)), "quantized checkpoints"),
    "missing shard": (sharded(dict, remove(SHARDS[1])), f"{SHARDS[1]} is missing, but {INDEX} lists it"),
    "shard cut off": (sharded(dict, cut(SHARDS[1], -300)), f"{SHARDS[1]}: cannot be read as safetensors"),
    "index of a missing tensor": (sharded(lambda all_: {**all_, "ghost": SHARDS[0]}), "the shards lack ghost"),
    "index outside": (sharded(lambda all_: {**all_, "a": "../b"}), "'../b' is not a plain file name"),
    "index without a map": (sharded(dict, write(INDEX, "{}")), f"{INDEX}: weight_map is missing or damaged"),
    "index of numbers": (sharded(dict, write(INDEX, '{"weight_map": {"a": 3}}')), "expected the shard of each"),
    "pickle that runs code": (harmful_pickle(TABLE), f"{PICKLED}: cannot be read as a PyTorch file that holds only"),
    "newer pickle that runs code": (pickled(lambda all_: {**all_, TABLE: Harmful()}), "holds only tensors by name"),
    "no pickle": (all_of(remove(WEIGHTS), write(PICKLED, "text")), f"{PICKLED}: cannot be read as a PyTorch file"),
    "pickle cut off": (all_of(pickled(dict), cut(PICKLED, 200_000)), f"{PICKLED}: cannot be read as a PyTorch"),
    "checkpoint of a trainer": (pickled(lambda all_: {"model": all_, "step": 3}), "holds only tensors by name"),
    "pickled weight no number": (pickled(lambda all_: {**all_, LINEAR: all_[LINEAR] / 0}), "not finite"),
    # Tokenizers.
    "no vocabulary": (remove("vocab.json"), "vocab.json is missing; the tokenizer, MarianTokenizer, needs it"),
    "no pieces": (remove("source.spm"), "source.spm is missing; the tokenizer, MarianTokenizer, needs it"),
    "pieces cut off": (cut("target.spm", 9999), "target.spm: is not a SentencePiece model (INTERNAL: could not"),
    "vocabulary cut off": (cut("vocab.json", 500), "vocab.json: expected a JSON object in UTF-8"),
    "vocabulary on a failing disk": (link("vocab.json", FAILING), "vocab.json: cannot be read (Input/output error)"),
    "ids are text": (retype("vocab.json", str), "the id of '</s>' is '0'; expected a number from 0"),
    "negative id": (change("vocab.json", a=-4), "vocab.json: the id of 'a' is -4; expected a number from 0"),
    "an id twice": (change("vocab.json", a=4), "two tokens of the vocabulary have the same id"),
    "ids beyond the table": (retype("vocab.json", lambda id_: id_ and id_ + 99), "ids up to 1081, but the model has"),
    "no end token": (change("vocab.json", **{"</s>": ...}), "the vocabulary lacks the end token, </s>"),
    "tokenizer of T5": (take("t5", "spiece.model", TOKENIZER), "it is the tokenizer of another model"),
    "unknown class": (change(TOKENIZER, tokenizer_class="Mine"), "transformers does not have the class Mine"),
    "class is a number": (change(TOKENIZER, tokenizer_class=7), "tokenizer_class is 7; expected the name of a class"),
    "Moses' rules": (change(TOKENIZER, tokenizer_class="FSMTTokenizer"), "FSMTTokenizer tokenizes with Moses'"),
}
T5: Cases = {
    "wrong head width": (change(CONFIG, d_kv=16), "SelfAttention.q.weight is 32 x 32, but config.json makes it 64"),
    "no relative buckets": (change(CONFIG, relative_attention_num_buckets=0), "relative_attention_num_buckets is 0"),
    "no pieces of T5": (remove("spiece.model"), "spiece.model is missing; the tokenizer, T5Tokenizer, needs it or"),
    "empty pieces of T5": (write("spiece.model", ""), "spiece.model: is not a SentencePiece model"),
    "tokenizer.json cut off": (write("tokenizer.json", '{"model'), "tokenizer.json: expected a JSON object in UTF-8"),
    "tokenizer.json is none": (write("tokenizer.json", "{}"), "tokenizer.json: is not a tokenizer"),
}
BART: Cases = {
    "no padding token": (change(CONFIG, pad_token_id=None), "pad_token_id is missing; expected a token id from 0"),
    "no merges": (remove("merges.txt"), "merges.txt is missing; the tokenizer, RobertaTokenizer, needs it or"),
    "empty merges": (write("merges.txt", "#version: 0.2\n"), "merges.txt: expected merges, one pair of pieces a line"),
    "merge of three": (write("merges.txt", "a b\na b c\n"), "merges.txt: line 2 is 'a b c'; expected a pair"),
    "another end token": (swap("vocab.json", "</s>", "<s>"), "eos_token_id is 2; it is the tokenizer of another"),
}
ALL = {"marian": MARIAN, "t5": T5, "bart": BART}
CASES = [(layout, name) for layout, cases in ALL.items() for name in cases]


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    return forking_context()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a sound model of each layout."""
    folder = tmp_path_factory.mktemp("models")
    for layout in ALL:
        write_model(folder, layout)
    return folder


def assert_refused(ended: Ended, message: str) -> None:
    [line] = ended.errors.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert ended.status == 1


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_damage_is_one_sentence_and_leaves_nothing(
    layout: str, name: str, models: Path, context: ForkServerContext, tmp_path: Path
) -> None:
    damage, message = ALL[layout][name]
    model, made = tmp_path / "model", tmp_path / "made"
    shutil.copytree(models / layout, model)
    damage(model)
    made.mkdir()
    ended = run_forked(context, tmp_path, "--from-transformers", model, made / "bundles" / "x")
    assert_refused(ended, message)
    assert not [*made.iterdir(), *(tmp_path / SCRATCH).iterdir()]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("file", "is not a directory; expected the one that holds config.json and the weights"),
        ("link", "is not a directory; expected the one that holds config.json and the weights"),
        ("gone", "neither a directory nor the name of a model on the hub"),
    ],
)
def test_places_without_a_model(model: str, message: str, context: ForkServerContext, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("gone")
    assert_refused(run_forked(context, tmp_path, "--from-transformers", tmp_path / model, tmp_path / "x"), message)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("bundle", "options", "message"),
    [
        ("folder", [], "folder already exists: choose another place, or replace it with --overwrite"),
        ("folder", ["--overwrite"], "folder is not a bundle (it has no manifest.json), so it is not overwritten"),
        ("file", [], "file already exists"),
        ("file", ["--overwrite"], "file is not a bundle"),
        ("file/x", [], "file is not a directory that can be written"),
        ("link", [], "link can't be made: it is a link to gone, which is missing"),
        ("x", ["--sources", "gone.txt"], "gone.txt: cannot be read"),
        ("x", ["--sources", "file"], "file: has no text; expected one source a line"),
    ],
)
def test_places_where_no_bundle_can_be_made(
    bundle: str, options: list[str], message: str, models: Path, context: ForkServerContext, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("gone")
    options = [str(tmp_path / "file") if option == "file" else option for option in options]
    before = set(tmp_path.rglob("*"))
    ended = run_forked(context, tmp_path, "--from-transformers", models / "marian", tmp_path / bundle, *options)
    assert_refused(ended, message)
    assert set(tmp_path.rglob("*")) - before == {tmp_path / name for name in LEFT_BY_RUN}
