"""The compared trainers, each with its own step: ours, PyTorch's nn.Transformer, and Hugging Face's Marian.

The two others get the same as ours: batches in the same order from the same sampler, AdamW with the same settings
(PyTorch's fused one), learning rates, label smoothing, gradient clipping, dropout in the same places, and bfloat16 by
the same autocast. Their attention is computed by PyTorch's fused kernel or by plain products, as configured; ours has
no such choice.
"""

import tempfile
import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dragoman_training.data.batches import Batch, BatchSampler, PairList, Position
from dragoman_training.data.encode import Tokenizers
from dragoman_training.data.prepare import TrainingData
from dragoman_training.data.tokenizers import BEGIN_ID, END_ID, PAD_ID
from dragoman_training.model.loss import IGNORED
from dragoman_training.optimization.optimizer import build_optimizer, learning_rate
from dragoman_training.trainer import Trainer
from tests.benchmark.training.torch_transformer import TorchTransformer
from tests.benchmark.training.work import Work
from tests.support.random_model import symbol_tokenizer
from tests.support.training import silent_bar

Attention = Literal["own", "fused", "plain"]
CPU = torch.device("cpu")


class Steps(NamedTuple):
    """Some steps of one trainer: target tokens without padding, and the mean loss of the last step, in nats."""

    seconds: float
    target_tokens: int
    loss: float


class Contender(ABC):
    """A trainer that makes steps, data loading included.

    Args:
        threads: PyTorch threads.
    """

    def __init__(self, work: Work, threads: int) -> None:
        torch.set_num_threads(threads)
        self.work = work
        self.before = memory("VmRSS")

    @abstractmethod
    def update(self, batch: Batch, attention: Attention) -> float:
        """One step of the optimizer; the loss."""

    def measure(self, first: int, attention: Attention) -> Steps:
        """Measures the steps of a sample from batch `first` of the first epoch on; weights are kept."""
        pairs = PairList(self.work.pairs)
        plan = BatchSampler(pairs, self.work.training.batch_tokens, seed=1).plan(Position(position=first))
        target, loss = 0, 0.0
        started = time.perf_counter()
        for _ in range(self.work.steps):
            batch = next(plan).read()
            loss = self.update(batch, attention)
            target += batch.target_tokens
        return Steps(time.perf_counter() - started, target, loss)

    def peak_bytes(self) -> int:
        """Most memory that this process ever held, above what it held before there was a model."""
        return memory("VmHWM") - self.before


class Ours(Contender):
    """dragoman_training.trainer.Trainer, as `dragoman-train` runs it."""

    def __init__(self, work: Work, threads: int) -> None:
        super().__init__(work, threads)
        source, target = (symbol_tokenizer(size) for size in work.vocabularies)
        data = TrainingData(Tokenizers(source, target), work.pairs, PairList(work.pairs), [], [], [])
        with tempfile.TemporaryDirectory() as run:
            recipe = work.recipe()
            self.trainer = Trainer(recipe, Path(run), data, CPU, threading.Event(), silent_bar(recipe))
            self.trainer.metrics_log.close()

    def update(self, batch: Batch, attention: Attention) -> float:
        return self.trainer.learner.update([batch], batch.target_tokens)


class Other(Contender):
    """A loop around somebody's model, written as its users would."""

    def __init__(self, work: Work, threads: int) -> None:
        super().__init__(work, threads)
        torch.manual_seed(1)
        self.model = self.build()
        self.optimizer = build_optimizer(self.model, work.training)
        self.step = 0

    @abstractmethod
    def build(self) -> nn.Module:
        """The model, in training mode."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """[batch, target, vocabulary]"""

    def update(self, batch: Batch, attention: Attention) -> float:
        config = self.work.training
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, self.work.model.d_model, self.step)
        with ExitStack() as stack:
            if attention == "plain":
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"))
            logits = self.logits(batch)
            loss = F.cross_entropy(
                logits.float().flatten(0, 1),
                batch.target_output.flatten(),
                label_smoothing=config.label_smoothing,
                ignore_index=IGNORED,
            )
            loss.backward()  # type: ignore[no-untyped-call]
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


class OfTorch(Other):
    """torch.nn.Transformer between embeddings and a tied output layer."""

    def build(self) -> nn.Module:
        return TorchTransformer(self.work.model, *self.work.vocabularies)

    def logits(self, batch: Batch) -> Tensor:
        logits: Tensor = self.model(batch.source, batch.target_input, batch.source == PAD_ID)
        return logits


class Marian(Other):
    """transformers.MarianMTModel."""

    def build(self) -> nn.Module:
        from transformers import MarianConfig, MarianMTModel  # takes seconds; only this process needs it

        shape, (source, target) = self.work.model, self.work.vocabularies
        options: dict[str, Any] = {
            "vocab_size": source,
            "decoder_vocab_size": target,
            "d_model": shape.d_model,
            "encoder_layers": shape.encoder_layers,
            "decoder_layers": shape.decoder_layers,
            "encoder_attention_heads": shape.heads,
            "decoder_attention_heads": shape.heads,
            "encoder_ffn_dim": shape.d_ff,
            "decoder_ffn_dim": shape.d_ff,
            "activation_function": shape.activation,
            "dropout": shape.dropout,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "scale_embedding": True,
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": True,
            "max_position_embeddings": max(shape.max_source_length, shape.max_target_length + 1),
            "pad_token_id": PAD_ID,
            "decoder_start_token_id": BEGIN_ID,
            "eos_token_id": END_ID,
        }
        model: nn.Module = MarianMTModel._from_config(MarianConfig(**options), attn_implementation="sdpa")
        return model.train()

    def logits(self, batch: Batch) -> Tensor:
        logits: Tensor = self.model(
            input_ids=batch.source,
            attention_mask=(batch.source != PAD_ID).long(),
            decoder_input_ids=batch.target_input,
            use_cache=False,
        ).logits
        return logits


def memory(field: str) -> int:
    """Bytes that this process holds now (VmRSS) or held at most (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
