"""Word-level distillation: runs that learn the distributions of teachers."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dragoman_training.data.batches import EncodedPair, collate
from dragoman_training.data.epochs import Epochs
from dragoman_training.data.plain import find_places
from dragoman_training.errors import TrainingError
from dragoman_training.model import loss as loss_module
from dragoman_training.model.loss import IGNORED, Loss, cross_entropy
from dragoman_training.model.teaching import Teaching
from dragoman_training.optimization.parallel import Objective
from dragoman_training.recipe import Recipe
from dragoman_training.run.load import load_run
from tests.support.training import make_trainer, run_training, same_weights, small_recipe

BATCH, TARGET, WIDTH, VOCABULARY = 3, 5, 8, 40


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the small recipe; do not change it."""
    run = tmp_path_factory.mktemp("teacher") / "run"
    run_training(small_recipe("training.steps=60"), run)
    return run


def taught_by(*teachers: Path, overrides: tuple[str, ...] = ()) -> Recipe:
    return small_recipe(f"training.teachers=[{', '.join(map(str, teachers))}]", *overrides)


# The loss


@pytest.mark.parametrize(("rows", "softmax_rows"), [(1, 1), (4, 2), (8, 100), (100, 3), (100, 100)])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("bf16", [False, True])
def test_loss_equals_pytorch(
    rows: int, softmax_rows: int, passes: int, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "_LEAST_ROWS", 1)
    monkeypatch.setattr(loss_module, "_LOGITS", rows * VOCABULARY)
    monkeypatch.setattr(loss_module, "_SOFTMAX_CPU", softmax_rows * VOCABULARY)
    torch.manual_seed(1)
    hidden = torch.randn(passes * BATCH, TARGET, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    target = torch.randint(0, VOCABULARY, (BATCH, TARGET))
    target[1, 3:] = IGNORED
    places = torch.randint(0, 11, (BATCH, TARGET))
    places[0, 1] = places[2, 0] = -1
    factors = [(torch.randn(11, width), torch.randn(VOCABULARY, width)) for width in (4, 6)]
    smoothing, share, r_drop = 0.1, 0.7, 0.5 if passes == 2 else 0.0
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = cross_entropy(hidden, weight, target, Loss(smoothing, r_drop, Teaching(share, places, factors)))

        kept = target.flatten() != IGNORED
        known = (places.flatten()[kept] >= 0).repeat(passes)
        ids, where = target.flatten()[kept].repeat(passes), places.flatten()[kept].clamp(min=0).repeat(passes)
        logits = F.linear(hidden, weight).float().flatten(0, 1)[kept.repeat(passes)]
        own = F.cross_entropy(logits, ids, reduction="none", label_smoothing=smoothing)
        taught = torch.stack([F.linear(x, w).float().softmax(-1)[where] for x, w in factors]).mean(0)
        soft = F.cross_entropy(logits, taught, reduction="none")
        expected = torch.where(known, share * soft + (1 - share) * own, own).sum()
        if passes == 2:
            p, q = logits.log_softmax(-1).chunk(2)
            expected += r_drop / 2 * sum(F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((p, q), (q, p)))
    torch.testing.assert_close(loss, expected, rtol=1e-2 if bf16 else 1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(value, (hidden, weight)) for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=5e-2 if bf16 else 1e-4, atol=5e-2 if bf16 else 1e-5)


def test_a_model_learns_nothing_from_itself(teacher: Path) -> None:
    model = load_run(teacher).model
    recipe = small_recipe("training.teacher_share=1", "training.label_smoothing=0")
    batch = collate([EncodedPair([7, 8, 3], [9, 3]), EncodedPair([7, 3], [9, 10, 11, 3])])
    objective = Objective(model, recipe.training, [model])
    gradients = torch.autograd.grad(objective(batch), list(model.parameters()))
    own = torch.autograd.grad(Objective(model, recipe.training)(batch), list(model.parameters()))
    largest = [max(float(gradient.abs().max()) for gradient in some) for some in (gradients, own)]
    assert largest[0] < 1e-5 * largest[1]


# Plain pairs


@pytest.mark.parametrize(
    ("changed", "plain", "places"),
    [
        ([7, 8, 3], [7, 8, 3], [0, 1, 2]),
        ([9, 9, 7, 8, 3], [7, 8, 3], [-1, -1, 0, 1, 2]),
        ([7, 9, 8, 3], [7, 8, 3], [0, -1, 1, 2]),
        ([7, 8, 9, 3], [7, 8, 3], [0, 1, -1, 2]),
        ([7, 7, 8, 3], [7, 8, 3], [0, -1, 1, 2]),
        ([7, 9, 8, 9, 3], [7, 8, 3], None),  # two runs
        ([7, 9, 3], [7, 8, 3], None),
        ([7, 3], [7, 8, 3], None),
        ([3], [7, 8, 3], None),
    ],
)
def test_places_of_plain_tokens(changed: list[int], plain: list[int], places: list[int] | None) -> None:
    assert find_places(changed, plain) == places


def test_teachers_read_the_plain_pair_if_tokens_were_only_inserted() -> None:
    grown = EncodedPair([30, 7, 3], [31, 9, 10, 3], plain=EncodedPair([7, 3], [9, 10, 3]))
    other = EncodedPair([8, 3], [12, 3], plain=EncodedPair([7, 3], [11, 3]))
    plain = collate([grown, other]).plain
    assert plain is not None
    assert plain.source.tolist() == [[7, 3], [8, 3]]
    assert plain.target_input.tolist() == [[2, 9, 10], [2, 12, 0]]
    assert plain.places.tolist() == [[-1, 0, 1, 2], [3, 4, -1, -1]]
    assert collate([EncodedPair([7, 3], [9, 3])]).plain is None


def test_what_a_teacher_says_does_not_depend_on_inserts(teacher: Path) -> None:
    """Its distributions are those of the plain pair, where the student reads the changed one."""
    model = load_run(teacher).model
    plain = EncodedPair([7, 8, 9, 3], [9, 10, 3])
    changed = EncodedPair([11, 7, 8, 9, 3], [9, 12, 12, 10, 3], plain)
    objective = Objective(model, small_recipe().training, [model])
    alone, inserted = objective._teach(collate([plain])), objective._teach(collate([changed, changed]))
    assert inserted.places.tolist() == [[0, -1, -1, 1, 2], [3, -1, -1, 4, 5]]
    torch.testing.assert_close(inserted.factors[0][0][3:], alone.factors[0][0])


def test_an_epoch_keeps_the_plain_pairs_for_teachers(teacher: Path, tmp_path: Path) -> None:
    changes = (
        "augmentation.inserts=1",
        "tokenizers.source={kind: bpe, vocabulary: 400}",
        "tokenizers.target={kind: bpe, vocabulary: 400}",
    )
    trainer = make_trainer(small_recipe(*changes), tmp_path / "plain")
    trainer.metrics_log.close()
    pairs = trainer.data.epochs.block(0, 0)
    assert all(pairs[i].plain is None for i in range(20))
    data = trainer.data.epochs
    assert isinstance(data, Epochs)
    block = Epochs(taught_by(teacher, overrides=changes), trainer.data.tokenizers, data.corpus).block(0, 0)
    grown = 0
    for i in range(200):
        pair = block[i]
        assert pair.plain is not None
        assert (pair.source, pair.target) == (pairs[i].source, pairs[i].target)  # teachers change nothing else
        grown += find_places(pair.target, pair.plain.target) is not None and len(pair.target) > len(pair.plain.target)
    assert grown > 150


# Runs


def test_a_student_learns_from_its_teachers(teacher: Path, tmp_path: Path) -> None:
    """On other data, it stays near the teacher that it starts from."""

    def distance(run: Path) -> float:
        batch = collate([EncodedPair([7, 8, 3], [9, 10, 3]), EncodedPair([5, 3], [11, 3])])
        first, second = (
            load_run(each).model(batch.source, batch.target_input).log_softmax(-1) for each in (run, teacher)
        )
        kept = batch.target_output != IGNORED
        return F.kl_div(first[kept][:, 4:], second[kept][:, 4:], reduction="batchmean", log_target=True).item()

    shuffled = tmp_path / "shuffled.tsv"
    shuffled.write_text("".join(f"{n}\tone\n" for n in range(300)))
    other = (f"data.train=[{shuffled}]",)
    run_training(small_recipe(*other), tmp_path / "alone", init_from=teacher)
    run_training(
        taught_by(teacher, teacher, overrides=(*other, "training.teacher_share=1")),
        tmp_path / "taught",
        init_from=teacher,
    )
    assert distance(tmp_path / "taught") < 0.1 * distance(tmp_path / "alone")
    provenance = load_run(tmp_path / "taught").provenance
    assert provenance["recipe"]["training"]["teachers"] == ["run", "run"]  # no path of this machine


def test_a_taught_run_resumes_where_it_was(teacher: Path, tmp_path: Path) -> None:
    recipe = taught_by(teacher, overrides=("training.schedule=inverse_square_root",))
    run_training(recipe, tmp_path / "whole")
    begun = recipe.model_copy(update={"training": recipe.training.model_copy(update={"steps": 6})})
    run_training(begun, tmp_path / "parts")
    run_training(recipe, tmp_path / "parts", resume=True)
    assert same_weights(tmp_path / "whole" / "model.pt", tmp_path / "parts" / "model.pt")


def test_unsuitable_teachers_are_refused(teacher: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "manifest.json").touch()
    for path, message in (
        (
            tmp_path / "none",
            rf"^training\.teachers: {tmp_path}/none: no run here \(recipe\.yaml is missing\); expected",
        ),
        (
            bundle,
            rf"^training\.teachers: {bundle}: this is a bundle; `dragoman-export --to-run {bundle} RUN` turns it into",
        ),
    ):
        with pytest.raises(TrainingError, match=message):
            run_training(taught_by(path), tmp_path / "run")
    other = tmp_path / "other.tsv"
    other.write_text("".join(f"{n:04}\tmillion {n}\n" for n in range(300)))
    with pytest.raises(TrainingError, match=rf"^training\.teachers: {teacher} has another target vocabulary; expected"):
        run_training(taught_by(teacher, overrides=(f"data.train=[{other}]",)), tmp_path / "run")
    with pytest.raises(TrainingError, match=rf"model\.max_target_length is 24 in {teacher} and 25 in the recipe"):
        run_training(taught_by(teacher, overrides=("model.max_target_length=25",)), tmp_path / "run2")
