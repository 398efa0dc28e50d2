"""One optimizer step: batches, loss and linear layers against PyTorch, learning rates, weight decay, freed memory."""

import math
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman_training.data.batches import BatchSampler, EncodedPair, PairList, collate
from dragoman_training.data.shares import share_out
from dragoman_training.model import ModelConfig
from dragoman_training.model import linear as linear_module
from dragoman_training.model import loss as loss_module
from dragoman_training.model.feed_forward import FeedForward
from dragoman_training.model.linear import Linear, padded
from dragoman_training.model.loss import IGNORED, Loss, cross_entropy
from dragoman_training.optimization.allocator import _glibc
from dragoman_training.optimization.optimizer import build_optimizer, learning_rate
from dragoman_training.optimization.parallel import Objective
from dragoman_training.optimization.precision import resolve_precision
from dragoman_training.recipe import TrainingConfig
from tests.support.random_model import random_model

VOCABULARY, WIDTH = 37, 16
PAIRS = [
    EncodedPair([4] * random.Random(i).randint(1, 20), [5] * random.Random(-i - 1).randint(1, 20)) for i in range(500)
]
lengths = st.integers(1, 30)


# Batches


def batches_of(
    pairs: Sequence[EncodedPair], budget: int, seed: int = 1, epoch: int = 0, block: int = 0
) -> list[NDArray[np.int64]]:
    """Returns the batches of a block, as indices into its pairs."""
    return [planned.indices for planned in BatchSampler(PairList(pairs), budget, seed).block(epoch, block)]


@given(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=80), st.integers(1, 200), st.integers(0, 5))
def test_batches_hold_each_pair_once_within_the_budget(shape: list[tuple[int, int]], budget: int, epoch: int) -> None:
    pairs = [EncodedPair([4] * source, [5] * target) for source, target in shape]
    batches = [batch.tolist() for batch in batches_of(pairs, budget, epoch=epoch)]
    assert sorted(i for batch in batches for i in batch) == list(range(len(pairs)))
    for batch in batches:
        width = max(len(pairs[i].source) for i in batch) + max(len(pairs[i].target) for i in batch)
        # A pair that exceeds the budget is a batch of its own.
        assert len(batch) * width <= budget or len(batch) == 1


def test_batches_hold_pairs_of_similar_length() -> None:
    padded = used = 0
    for indices in batches_of(PAIRS, 300):
        batch = collate([PAIRS[i] for i in indices])
        padded += batch.source.numel()
        used += sum(len(PAIRS[i].source) for i in indices)
    assert used / padded > 0.9


def test_batch_order_depends_on_seed_and_epoch_alone() -> None:
    def drawn(seed: int, epoch: int, block: int = 0) -> list[list[int]]:
        return [batch.tolist() for batch in batches_of(PAIRS, 300, seed, epoch, block)]

    assert drawn(1, 3) == drawn(1, 3)
    assert drawn(1, 3) != drawn(1, 4)
    assert drawn(1, 3) != drawn(2, 3)
    assert drawn(1, 3) != drawn(1, 3, 1)


@pytest.mark.parametrize("skip", [1, 40, 200])
def test_a_plan_resumes_at_its_position(skip: int) -> None:
    sampler = BatchSampler(PairList(PAIRS), 300, seed=1)
    plan = sampler.plan()
    for _ in range(skip):
        last = next(plan)
    resumed = sampler.plan(last.position)
    for _ in range(50):
        expected, actual = next(plan), next(resumed)
        assert (actual.position, actual.tokens) == (expected.position, expected.tokens)
        assert np.array_equal(actual.indices, expected.indices)


def test_planned_tokens_are_those_of_the_batch() -> None:
    for planned in islice(BatchSampler(PairList(PAIRS), 300, seed=1).plan(), 50):
        batch = planned.read(number=3)
        assert planned.tokens == batch.source.numel() + batch.target_output.numel()
        assert planned.target_tokens == batch.target_tokens
        assert batch.number == 3


costs = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


@given(costs, st.integers(1, 9))
def test_batches_are_shared_out_evenly(costs: list[int], processes: int) -> None:
    shares = share_out(costs, processes)
    assert sorted(batch for share in shares for batch in share) == list(range(len(costs)))
    assert len(shares) == processes
    assert max(map(len, shares)) == math.ceil(len(costs) / processes), "all processes run as many, with fillers"
    loads = [sum(costs[batch] for batch in share) for share in shares]
    for share, load in zip(shares, loads, strict=True):
        if len(share) < max(map(len, shares)):  # it had room for the last batch of any other, which had less to do then
            assert all(load >= sum(sorted(costs[batch] for batch in other)[1:]) for other in shares)


def test_shares_are_balanced_by_tokens_not_by_number() -> None:
    assert share_out([90, 50, 40, 10], 2) == [[0, 3], [1, 2]]
    assert share_out([200, 9000, 300, 9000], 2) == [[1, 2], [0, 3]]
    assert share_out([5], 3) == [[0], [], []]


def test_a_batch_without_targets_teaches_nothing() -> None:
    batch = collate(PAIRS[:3], number=1).without_targets()
    assert (len(batch.source), batch.target_tokens, batch.number) == (1, 0, 1)
    assert (batch.target_output == IGNORED).all()


def test_collate() -> None:
    batch = collate([EncodedPair([7, 8, 3], [9, 3]), EncodedPair([7, 3], [9, 10, 11, 3])])
    assert batch.source.tolist() == [[7, 8, 3], [7, 3, 0]]
    assert batch.target_input.tolist() == [[2, 9, 0, 0], [2, 9, 10, 11]]
    assert batch.target_output.tolist() == [[9, 3, IGNORED, IGNORED], [9, 10, 11, 3]]
    assert batch.target_tokens == 6


# Loss and linear layers


def outputs() -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states [3, 5, WIDTH], the output layer [VOCABULARY, WIDTH], and targets [3, 5] with padding."""
    torch.manual_seed(1)
    target = torch.randint(0, VOCABULARY, (3, 5))
    target[1, 2:] = target[2, 4:] = IGNORED
    hidden, weight = torch.randn(3, 5, WIDTH), torch.randn(VOCABULARY, WIDTH)
    return hidden.requires_grad_(), weight.requires_grad_(), target


def compute_at_a_time(monkeypatch: pytest.MonkeyPatch, rows: int, softmax_rows: int) -> None:
    monkeypatch.setattr(loss_module, "_LEAST_ROWS", 1)
    monkeypatch.setattr(loss_module, "_LOGITS", rows * VOCABULARY)
    monkeypatch.setattr(loss_module, "_SOFTMAX_CPU", softmax_rows * VOCABULARY)


@pytest.mark.parametrize(("rows", "softmax_rows"), [(1, 1), (4, 2), (4, 4), (6, 4), (8, 100), (100, 3), (100, 100)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bf16", [False, True])
def test_loss_equals_pytorch(
    rows: int, softmax_rows: int, smoothing: float, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_at_a_time(monkeypatch, rows, softmax_rows)
    hidden, weight, target = outputs()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = cross_entropy(hidden, weight, target, Loss(smoothing)) / 7
        logits = F.linear(hidden, weight).float().flatten(0, 1)
        options = {"label_smoothing": smoothing, "ignore_index": IGNORED}
        expected = F.cross_entropy(logits, target.flatten(), reduction="sum", **options) / 7  # type: ignore[arg-type]
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        assert torch.equal(cross_entropy(hidden, weight, target, Loss(smoothing)) / 7, loss)
    gradients = [torch.autograd.grad(value, (hidden, weight)) for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=2e-2 if bf16 else 1e-4, atol=2e-2 if bf16 else 1e-5)


@pytest.mark.parametrize(("rows", "softmax_rows"), [(1, 1), (5, 3), (8, 4), (100, 100)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_r_drop_adds_the_divergence_of_two_passes(
    rows: int, softmax_rows: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_at_a_time(monkeypatch, rows, softmax_rows)
    _, weight, target = outputs()
    hidden = torch.randn(2 * len(target), 5, WIDTH, requires_grad=True)
    loss = cross_entropy(hidden, weight, target, Loss(smoothing, r_drop=5.0)) / 7
    logits = F.linear(hidden, weight).flatten(0, 1)
    options = {"label_smoothing": smoothing, "ignore_index": IGNORED}
    entropy = F.cross_entropy(logits, target.flatten().repeat(2), reduction="sum", **options)  # type: ignore[arg-type]
    first, second = logits.log_softmax(-1)[(target.flatten() != IGNORED).repeat(2)].chunk(2)
    divergences = (F.kl_div(p, q, reduction="sum", log_target=True) for p, q in ((first, second), (second, first)))
    expected = (entropy + 5.0 / 2 * sum(divergences)) / 7
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(cross_entropy(hidden, weight, target, Loss(smoothing, r_drop=5.0)) / 7, loss)
    gradients = [torch.autograd.grad(value, (hidden, weight)) for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_r_drop_measures_what_dropout_changes() -> None:
    layers, lengths = {"encoder_layers": 1, "decoder_layers": 1}, {"max_source_length": 8, "max_target_length": 8}
    shape = {"d_model": 16, "heads": 2, "d_ff": 32, "dropout": 0.3, **layers, **lengths}
    model = random_model(ModelConfig.model_validate(shape), VOCABULARY, seed=1)
    batch = collate([EncodedPair([7, 8, 3], [9, 3]), EncodedPair([7, 3], [9, 10, 11, 3])])
    plain, r_drop = (Objective(model, config("noam", r_drop=weight)) for weight in (0.0, 5.0))
    torch.testing.assert_close(r_drop.eval()(batch), plain.eval()(batch))  # the passes are equal
    torch.manual_seed(1)
    mean_loss = sum(plain.train()(batch).item() for _ in range(200)) / 200
    assert sum(r_drop.train()(batch).item() for _ in range(100)) / 100 > 1.05 * mean_loss


def test_the_loss_has_gradients_once() -> None:
    """They are scaled in place, so a second pass would scale them again."""
    hidden, weight, target = outputs()
    loss = cross_entropy(hidden, weight, target, Loss(0.1))
    torch.autograd.grad(loss, hidden, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, hidden)


def test_loss_of_padding_alone_and_of_infinite_states() -> None:
    hidden, weight, target = outputs()
    loss = cross_entropy(hidden, weight, torch.full_like(target, IGNORED), Loss(0.1))
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, (hidden, weight)))
    assert cross_entropy(hidden * torch.inf, weight, target, Loss(0.1)).isnan()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("onednn", [False, True])
def test_linear_in_training_equals_pytorch(
    bias: bool, bf16: bool, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_module, "ONEDNN", onednn)
    torch.manual_seed(1)
    linear, expected = Linear(24, 40, bias=bias), nn.Linear(24, 40, bias=bias)
    expected.load_state_dict(linear.state_dict())
    x = torch.randn(3, 7, 24)
    results = []
    for layer in (linear, expected):
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            y = layer(leaf)
            (y.float() ** 2).sum().backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients)
        results.append([y, leaf.grad, *gradients])
    torch.testing.assert_close(*results, rtol=2e-2 if bf16 else 1e-4, atol=0.2 if bf16 else 1e-4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("frozen", [(), ("x",), ("expand.weight", "contract.bias")])
def test_relu_network_in_training_equals_pytorch(bias: bool, bf16: bool, frozen: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    network = FeedForward(24, 40, "relu", bias=bias)
    expected = nn.Sequential(nn.Linear(24, 40, bias=bias), nn.ReLU(), nn.Linear(40, 24, bias=bias))
    for layer, other in ((expected[0], network.expand), (expected[2], network.contract)):
        layer.load_state_dict(other.state_dict())
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name not in frozen)
    x = torch.randn(3, 7, 24)
    results: list[list[Tensor | None]] = []
    for layer in (network, expected):
        leaf = x.clone().requires_grad_("x" not in frozen)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            y = layer(leaf)
            (y.float() ** 2).sum().backward()
        results.append([y, leaf.grad, *(parameter.grad for parameter in layer.parameters())])
    names = ["y", "x", *dict(network.named_parameters())]
    for name, found, right in zip(names, *results, strict=True):
        assert (found is None) == (name in frozen), name
        if found is not None:
            assert found.dtype == (torch.bfloat16 if bf16 and name == "y" else torch.float32)
            torch.testing.assert_close(found, right, rtol=2e-2 if bf16 else 1e-4, atol=0.3 if bf16 else 1e-4)


@pytest.mark.parametrize("rows", [0, 1, 64, 65, 2047, 2048, 2049, 4000])
def test_products_in_bf16_have_few_numbers_of_rows(rows: int) -> None:
    x = torch.randn(rows, 3)
    found = padded(x, torch.bfloat16)
    assert torch.equal(found[:rows], x.bfloat16())
    assert not found[rows:].any()
    assert len(found) % 64 == 0
    assert len(found) - rows < max(64, rows / 8)
    assert len({len(padded(torch.empty(count, 1), torch.bfloat16)) for count in range(2049, 4097)}) == 8
    assert padded(x, torch.float32) is x  # no copy: its products are compiled faster than they are computed


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux names its processor there")
@pytest.mark.parametrize(("processor", "onednn"), [("GenuineIntel", False), ("AuthenticAMD", True)])
def test_onednn_computes_except_on_intel(processor: str, onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(Path, "read_text", lambda path: f"vendor_id\t: {processor}\n")
    assert linear_module._prefers_onednn() == onednn


def test_linear_in_evaluation_is_pytorchs() -> None:
    layer = Linear(8, 8).eval()
    x = torch.randn(2, 8)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


# Optimizer


def config(schedule: str, **changes: object) -> TrainingConfig:
    values = {"steps": 100, "batch_tokens": 1, "learning_rate": 0.5, "schedule": schedule, "warmup_steps": 10}
    return TrainingConfig.model_validate({**values, **changes})


def rates(schedule: str, **changes: object) -> list[float]:
    return [learning_rate(config(schedule, **changes), 64, step) for step in range(1, 101)]


@pytest.mark.parametrize("schedule", ["cosine", "inverse_square_root"])
def test_warmup_is_linear_to_the_peak(schedule: str) -> None:
    values = rates(schedule)
    assert values[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert max(values) == values[9]
    assert values[9:] == sorted(values[9:], reverse=True)


def test_schedules_follow_their_formulas() -> None:
    cosine = rates("cosine")
    assert cosine[54] == pytest.approx(0.25)  # halfway from step 10 to 100
    assert cosine[99] == pytest.approx(0, abs=1e-12)
    assert rates("inverse_square_root")[39] == pytest.approx(0.25)  # four times the warm-up, half the rate
    assert rates("inverse_square_root", warmup_steps=0)[3] == pytest.approx(0.25)
    stable = rates("warmup_stable_decay", decay_steps=20)
    assert stable[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert stable[10:80] == [0.5] * 70
    assert stable[80:] == pytest.approx([0.025 * left for left in range(19, -1, -1)])
    noam = rates("noam", learning_rate=1.0)
    for step in (1, 5, 10, 40, 100):
        assert noam[step - 1] == pytest.approx(64**-0.5 * min(step**-0.5, step * 10**-1.5))
    assert max(noam) == noam[9] == pytest.approx(1 / (8 * math.sqrt(10)))


def test_only_matrices_decay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    decay, rest = build_optimizer(model, config("cosine", weight_decay=0.1)).param_groups
    assert (decay["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert [p.dim() for p in decay["params"]] == [2]
    assert [p.dim() for p in rest["params"]] == [1, 1, 1]


# Precision


@pytest.mark.parametrize(
    ("flags", "name", "reason"),
    [
        ({"avx512_f": True}, "fp32", "this CPU has neither AMX nor AVX512-BF16"),
        ({"avx512_bf16": True, "amx_bf16": False}, "bf16", "this CPU has AVX512-BF16"),
        ({"avx512_bf16": True, "amx_bf16": True}, "bf16", "this CPU has AMX"),
        ({"neon": True, "bf16": True}, "bf16", "this CPU has BF16 instructions"),
    ],
)
def test_auto_takes_bf16_where_the_cpu_has_it(
    flags: dict[str, bool], name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    cpu = torch.device("cpu")
    assert resolve_precision("auto", cpu) == (name, f"training.precision: auto is {name} here: {reason}")
    assert resolve_precision("fp32", cpu) == ("fp32", "")
    slow = f"warning: training.precision: bf16 can be 20 times slower than fp32 here: {reason}; auto takes fp32"
    assert resolve_precision("bf16", cpu) == ("bf16", "" if name == "bf16" else slow)


@pytest.mark.parametrize("fast", [False, True])
def test_auto_on_gpus(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: fast)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Model")
    name, line = resolve_precision("auto", torch.device("cuda"))
    assert name == ("bf16" if fast else "fp32")
    assert line.endswith(f"this GPU (Model) {'has' if fast else 'lacks'} bf16")


# Memory

FREE = """
from pathlib import Path

from dragoman_training.optimization.allocator import keep_freed_memory, release_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

keep_freed_memory()
blocks = [b"x" * 2**20 for _ in range(201)]
used = resident()
last = blocks.pop()  # keeps the end of the heap from being trimmed
blocks.clear()
kept = resident()
release_memory()
print(used, kept, resident())
"""


@pytest.mark.skipif(_glibc() is None, reason="needs glibc")
def test_freed_memory_is_kept_until_released() -> None:
    done = subprocess.run([sys.executable, "-c", FREE], capture_output=True, text=True, check=True)
    used, kept, released = map(int, done.stdout.split())
    assert kept > used - 20
    assert released < kept - 150
