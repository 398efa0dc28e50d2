"""`dragoman-export --to-run --from-transformers`: a published model becomes a run that can be trained on.

The references are transformers' loss with the labels of its own tokenizers, and the bundle of the model itself.
"""

from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from transformers import AutoTokenizer
from transformers.models.auto import AutoModelForSeq2SeqLM

from dragoman_export.bundle.options import ImportOptions
from dragoman_export.imports import read_import
from dragoman_export.run_data import read_run
from dragoman_training.data.batches import EncodedPair, collate
from dragoman_training.data.languages import with_language
from dragoman_training.data.prepare import prepare
from dragoman_training.errors import TrainingError
from dragoman_training.model import Transformer
from dragoman_training.model.loss import Loss, cross_entropy
from dragoman_training.recipe import load_recipe
from dragoman_training.run.load import load_run
from dragoman_training.run.metrics_log import read_metrics_log
from dragoman_training.run.start import load_start, write_start
from tests.support.export_command import refusal, run_export
from tests.support.huggingface_directories import lines
from tests.support.huggingface_models import write_model
from tests.support.training import run_training

pytestmark = pytest.mark.usefixtures("shared_graphs")


class Languages(NamedTuple):
    """Languages of source and target: our names, and transformers' where they differ."""

    source: str | None = None
    target: str | None = None
    theirs: tuple[str, str] | None = None


LAYOUTS = {
    "nllb": Languages("eng_Latn", "deu_Latn"),
    "m2m_100": Languages("fr", "de"),
    "mbart": Languages("en_XX", None, ("en_XX", "de_DE")),
    "mbart50": Languages("fr_XX", "de_DE"),
    "bart": Languages(),
    "t5": Languages(),
    "marian-split": Languages(),
    "byt5": Languages(),
    "mt5": Languages(),
}
FEW = [text.split(" ") for text in lines()[:12]]
TEXTS = [" ".join(words[: 2 + i % 5]) for i, words in enumerate(FEW)]
TARGETS = [" ".join(words[-(1 + i % 4) :]) for i, words in enumerate(FEW)]


def their_loss(folder: Path, languages: Languages) -> float:
    """Loss of transformers' own model on the pairs, with the labels of its own tokenizer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if languages.source is not None:
        source, target = languages.theirs or (languages.source, languages.target)
        tokenizer.src_lang, tokenizer.tgt_lang = source, target
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()
    batch = tokenizer(TEXTS, text_target=TARGETS, padding=True, return_tensors="pt")
    labels = batch.pop("labels")
    # Padding is not a target; the end token may have its id.
    lengths = [len(ids) for ids in tokenizer(text_target=TARGETS).input_ids]
    kept = torch.arange(labels.size(1)) < torch.tensor(lengths)[:, None]
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        return float(model(**batch, labels=labels.masked_fill(~kept, -100)).loss)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_loss_of_a_run_is_that_of_the_library(layout: str, tmp_path: Path) -> None:
    folder, languages = write_model(tmp_path, layout), LAYOUTS[layout]
    run_export("--to-run", "--from-transformers", folder, tmp_path / "run")
    run = load_run(tmp_path / "run")
    sources = [with_language(text, languages.target, languages.source) for text in TEXTS]
    targets = [run.tokenizers.target_of(*pair) for pair in zip(sources, TARGETS, strict=True)]
    encoded = zip(run.tokenizers.encode_sources(sources), run.tokenizers.encode_targets(targets), strict=True)
    batch = collate([EncodedPair(*pair) for pair in encoded], special=run.tokenizers.special)
    with torch.no_grad():
        hidden, weight = run.model.decoder.output_layer(run.model.hidden(batch.source, batch.target_input))
        loss = float(cross_entropy(hidden, weight, batch.target_output, Loss()))
    assert loss / batch.target_tokens == pytest.approx(their_loss(folder, languages), rel=1e-5)


def fine_tuned(made: Path, out: Path, languages: Languages, **training: Any) -> Path:
    """Trains on from a run, on pairs in these languages."""
    file = out.parent / "data.tsv"
    pairs = [(" ".join(words[:3]), " ".join(words[-2:])) for words in (text.split(" ") for text in lines()[:90])]
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    named = {"source_language": languages.source, "target_language": languages.target}
    entry = {"file": str(file), **{key: code for key, code in named.items() if code is not None}}
    document = yaml.safe_load((made / "recipe.yaml").read_text())
    mine = {key: document[key] for key in ("tokenizers", "model")}
    mine["data"] = {"train": [entry], "dev_held_out_sources": 9, "duplicates": "drop"}
    mine["training"] = {"steps": 30, "batch_tokens": 600, "learning_rate": 1e-3, "warmup_steps": 5, "log_every": 3}
    mine["training"] |= training
    mine["evaluation"] = {"metrics": ["chrf"]}
    recipe = out.parent / "mine.yaml"
    recipe.write_text(yaml.safe_dump(mine))
    run_training(load_recipe(recipe), out, init_from=made)
    return out


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    """Parameters and buffers; a bias of the logits, which may be either, has one name."""
    named = dict(chain(model.named_parameters(), model.named_buffers()))
    trained = named.pop("decoder.output_bias", None)
    return named if trained is None else {"decoder.logit_bias": trained, **named}


@pytest.mark.parametrize("layout", ["nllb", "mbart", "bart", "marian-split", "t5"])
def test_a_model_that_did_not_learn_is_what_it_was(layout: str, tmp_path: Path) -> None:
    """With a learning rate of almost zero, all that a bundle is made of is that of the model itself, bit for bit."""
    folder, languages, made = write_model(tmp_path, layout), LAYOUTS[layout], tmp_path / "made"
    run_export("--to-run", "--from-transformers", folder, made)
    still = {"steps": 1, "learning_rate": 1e-30, "warmup_steps": 0}
    again = read_run(fine_tuned(made, tmp_path / "same", languages, **still), print)
    imported = read_import(ImportOptions("transformers", str(folder)), print)
    for name in ("tokens", "limits", "generation", "license", "origin"):
        assert getattr(again, name) == getattr(imported, name), name
    for vocabulary, other in ((again.source, imported.source), (again.target, imported.target)):
        assert vocabulary.tokenizer.to_str() == other.tokenizer.to_str()
        pieces = [path and path.read_bytes() for path in (vocabulary.pieces, other.pieces)]
        assert pieces[0] == pieces[1]
    biased = imported.model.decoder.logit_bias is not None  # which a run's configuration says
    assert again.model.config == imported.model.config.model_copy(update={"output_bias": biased})
    before, after = weights(imported.model), weights(again.model)
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    defaults = {"source_language": languages.source, "target_language": languages.target}
    assert imported.text is not None
    named = {key: code for key, code in defaults.items() if code is not None}
    assert again.text == imported.text.model_copy(update=named)


@pytest.mark.parametrize("layout", ["nllb", "m2m_100", "mbart", "bart", "marian-split"])
def test_training_goes_on_from_a_published_model(layout: str, tmp_path: Path) -> None:
    folder, made = write_model(tmp_path, layout), tmp_path / "made"
    run_export("--to-run", "--from-transformers", folder, made)
    tuned = fine_tuned(made, tmp_path / "tuned", LAYOUTS[layout])
    losses = [record["loss"] for record in read_metrics_log(tuned) if record["kind"] == "train"]
    assert losses[-1] < losses[0] - 1
    assert load_run(tuned).provenance["start"]["report"]["origin"]["name"] == layout


def test_changed_pairs_keep_their_languages(tmp_path: Path) -> None:
    run_export("--to-run", "--from-transformers", write_model(tmp_path, "nllb"), tmp_path / "made")
    (tmp_path / "x.tsv").write_text("".join(f"ein Haus {n}\tdas Haus {n}\n" for n in range(60)))
    entry = f"{{file: {tmp_path / 'x.tsv'}, source_language: eng_Latn, target_language: deu_Latn}}"
    changes = "augmentation.uppercase=0.5", "augmentation.inserts=0.5"
    recipe = load_recipe(tmp_path / "made" / "recipe.yaml", [f"data.train=[{entry}]", *changes])
    start = load_start(recipe, tmp_path / "made")
    assert start is not None
    (tmp_path / "next").mkdir()
    write_start(start, tmp_path / "next")
    data = prepare(recipe, tmp_path / "next", lambda line: None)
    block = data.epochs.block(0, 0)
    changed = [block[i] for i in range(len(block))]
    assert sum(new != old for new, old in zip(changed, data.train, strict=True)) > len(changed) / 2
    english, german = map(data.tokenizers.source.token_to_id, ("eng_Latn", "deu_Latn"))
    end = data.tokenizers.special.end
    assert {(pair.source[0], pair.source[-1], pair.target[0], pair.target[-1]) for pair in changed} == {
        (english, end, german, end)
    }
    assert all(set(pair.target[1:]).isdisjoint({english, german}) for pair in changed)


def test_a_fine_tuned_model_is_quantized_on_its_data(tmp_path: Path) -> None:
    """With a SentencePiece model, which splits the targets that integers are calibrated on."""
    shallow = {"encoder_layers": 1, "decoder_layers": 1}
    folder = write_model(tmp_path, "m2m_100", sharpness=1, config_keys=shallow)
    run_export("--to-run", "--from-transformers", folder, tmp_path / "made")
    tuned = fine_tuned(tmp_path / "made", tmp_path / "tuned", LAYOUTS["m2m_100"], steps=3, warmup_steps=0)
    run_export(tuned, tmp_path / "bundle", "--precision", "int8", "--max-quality-loss", "100")
    message = refusal("--to-run", tmp_path / "bundle", tmp_path / "again")
    assert "this model continues a published one, whose rules of training are not in a bundle" in message


@pytest.mark.parametrize(
    ("layout", "entry", "message"),
    [
        (
            "nllb",
            "{file: x.tsv}",
            "x.tsv has no target_language, and the model has no default; expected one of ace_Arab",
        ),
        ("nllb", "{file: x.tsv, target_language: de}", "x.tsv has the target_language de; expected one of ace_Arab, "),
        (
            "mbart",
            "{file: x.tsv, target_language: fr_XX}",
            "x.tsv has a target_language, but the model has no choice of target languages",
        ),
        ("t5", "{file: x.tsv, source_language: en}", "but the model has no choice of source languages"),
    ],
)
def test_data_files_name_languages_of_the_model(layout: str, entry: str, message: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    run_export("--to-run", "--from-transformers", write_model(tmp_path, layout), made)
    recipe = load_recipe(made / "recipe.yaml", [f"data.train=[{entry}]"])
    with pytest.raises(TrainingError, match=r"^data\.train: ") as error:
        run_training(recipe, tmp_path / "next", init_from=made)
    assert message in str(error.value)


def test_a_recipe_for_imported_tokenizers_needs_their_model(tmp_path: Path) -> None:
    run_export("--to-run", "--from-transformers", write_model(tmp_path, "bart"), tmp_path / "made")
    (tmp_path / "x.tsv").write_text("a\tb\n" * 9)
    recipe = load_recipe(tmp_path / "made" / "recipe.yaml", [f"data.train=[{tmp_path / 'x.tsv'}]"])
    with pytest.raises(TrainingError) as error:
        run_training(recipe, tmp_path / "untrained")
    assert str(error.value) == "tokenizers.source.kind: imported needs --init-from with a run of an imported model"


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        (
            "plbart",
            "it generates targets that start with a forced token, but its tokenizer makes other ones for training",
        ),
        ("pegasus", "its positions are not sinusoidal, as its kind of model has them, but learned"),
        ("blenderbot-small", "its tokenizer ends no target with the end token, so that it would never learn to end"),
    ],
)
def test_models_that_runs_cannot_continue(layout: str, problem: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, layout)
    message = refusal("--to-run", "--from-transformers", folder, tmp_path / "run")
    assert message.startswith(f"error: {folder}: {problem}")
    assert not (tmp_path / "run").exists()
