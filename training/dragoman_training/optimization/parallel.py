"""One model in several processes: copies whose gradients are averaged (DDP), or shards of it (FSDP2).

What PyTorch needs for shards takes half a second to import, so that only runs that shard do so.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dragoman_training.data.batches import Batch
from dragoman_training.model import Transformer
from dragoman_training.model.loss import Loss, cross_entropy
from dragoman_training.model.teaching import Teaching
from dragoman_training.processes import Processes, finding_losses
from dragoman_training.recipe import TrainingConfig

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

State = dict[str, Any]
Place = Callable[[tuple[str | int, ...], Tensor], Tensor]


class Objective(nn.Module):
    """The loss of a model: the module whose forward pass is that of a training step.

    Args:
        model: The model in training.
        config: Its label smoothing, R-Drop and share of teachers.
        teachers: Models whose distributions it learns, in eval mode.
    """

    def __init__(self, model: Transformer, config: TrainingConfig, teachers: Sequence[Transformer] = ()) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.teachers = tuple(teachers)  # no modules of this one, whose weights are trained and sharded

    def forward(self, batch: Batch) -> Tensor:
        """Computes the label-smoothed cross entropy of a batch, its sum over the target tokens [].

        With R-Drop (Liang et al. 2021) it is the mean of two passes, which dropout makes differ, plus alpha / 2 times
        the mean of the two Kullback-Leibler divergences between them: half of the paper's loss. With teachers, their
        distributions take the place of a share of the targets.
        """
        config, passes = self.config, 2 if self.config.r_drop else 1
        source, target = (ids.repeat(passes, 1) for ids in (batch.source, batch.target_input))
        teaching = self._teach(batch) if self.teachers else None
        hidden = self.model.hidden(source, target)  # [passes * batch, target, d_model]
        hidden, output_layer = self.model.decoder.output_layer(hidden)
        loss = Loss(config.label_smoothing, config.r_drop, teaching)
        return cross_entropy(hidden, output_layer, batch.target_output, loss) / passes

    @torch.no_grad()
    def _teach(self, batch: Batch) -> Teaching:
        """Returns what the teachers say of a batch, of its plain pairs if it has them."""
        source, target = batch.source, batch.target_input
        places = torch.arange(target.numel(), device=target.device).view_as(target)
        if batch.plain is not None:
            source, target, places = batch.plain.source, batch.plain.target_input, batch.plain.places
        hidden = ((teacher, teacher.hidden(source, target)) for teacher in self.teachers)
        factors = [teacher.decoder.output_layer(outputs) for teacher, outputs in hidden]
        return Teaching(self.config.teacher_share, places, [(x.flatten(0, 1), weight) for x, weight in factors])


def copied(objective: Objective, device: torch.device) -> nn.Module:
    """Returns the objective with the weights of process 0, whose gradients are the means over all processes."""
    with finding_losses():
        return DistributedDataParallel(
            objective,
            device_ids=[device] if device.type == "cuda" else None,
            forward_sync_buffers=False,  # they never change
            gradient_as_bucket_view=True,
        )


def shard(root: nn.Module, model: Transformer, device: torch.device, processes: Processes) -> None:
    """Splits the weights of a model over the processes, in place: a layer is whole only while it is computed.

    Args:
        root: Module whose forward pass runs the model, or the model.
        model: Model on the CPU; its shards move to the device.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (processes.count,))
    for layer in (*model.encoder.layers, *model.decoder.layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(root, mesh=mesh)


def accumulating(objective: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Returns the context of a backward pass: gradients travel with that of the `last` batch of a step."""
    if isinstance(objective, DistributedDataParallel) and not last:
        return objective.no_sync()
    if _is_sharded(objective):
        objective.set_requires_gradient_sync(last)
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """Returns a tensor without shards; all processes must ask for it."""
    with finding_losses():
        return tensor.full_tensor() if _is_shard(tensor) else tensor


def local(parameter: Tensor) -> Tensor:
    """Returns this process's part of a parameter, which shares its memory."""
    weights = parameter.detach()
    return weights.to_local() if _is_shard(weights) else weights


def _is_shard(tensor: Tensor) -> "TypeGuard[DTensor]":
    module = sys.modules.get("torch.distributed.tensor")  # without which there are none
    return module is not None and isinstance(tensor, module.DTensor)


def _is_sharded(objective: nn.Module) -> "TypeGuard[FSDPModule]":
    module = sys.modules.get("torch.distributed.fsdp")
    return module is not None and isinstance(objective, module.FSDPModule)


def whole_weights(model: Transformer, keep: bool) -> State:
    """Gathers the weights of a sharded model on the CPU; shared matrices stay one tensor.

    Args:
        keep: Whether this process wants them; all take part.
    """
    found: dict[int, Tensor | None] = {}
    weights: State = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in found:
            tensor = whole(parameter.detach())
            found[id(parameter)] = tensor.cpu() if keep else None
        weights[name] = found[id(parameter)]
    return weights


def whole_state(state: State, keep: bool) -> State:
    """Gathers the tensors of a nested state, such as that of an optimizer, as `whole_weights` does."""
    gathered: State = {}
    for key, value in state.items():
        if isinstance(value, dict):
            gathered[key] = whole_state(value, keep)
        elif isinstance(value, Tensor):
            tensor = whole(value)
            gathered[key] = tensor.cpu() if keep else None
        else:
            gathered[key] = value
    return gathered


def sharded_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Returns this process's shard of a whole tensor, split like a parameter of the same shape; else the tensor."""
    if not _is_shard(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    # All processes have the whole tensor: nothing has to travel.
    return distribute_tensor(tensor.to(parameter.device), mesh, placements, src_data_rank=None)


class _Hole(NamedTuple):
    """The place of a tensor in a state that is shared without its tensors."""

    shape: torch.Size
    dtype: torch.dtype


def share_state(processes: Processes, state: State | None, place: Place) -> State | None:
    """Returns the state that process 0 loaded, in all processes: one tensor at a time, since few fit twice.

    Args:
        state: Nested state in process 0, None without one; ignored in the others.
        place: Given the keys of a tensor and its whole value on the CPU, returns what this process keeps of it.
    """
    skeleton = processes.share(None if state is None else _without_tensors(state))
    if skeleton is None:
        return None
    return _filled(skeleton, state if processes.is_first else None, processes, place, ())


def _without_tensors(state: State) -> State:
    skeleton: State = {}
    for key, value in state.items():
        if isinstance(value, dict):
            skeleton[key] = _without_tensors(value)
        else:
            skeleton[key] = _Hole(value.shape, value.dtype) if isinstance(value, Tensor) else value
    return skeleton


def _filled(
    skeleton: State, state: State | None, processes: Processes, place: Place, path: tuple[str | int, ...]
) -> State:
    filled: State = {}
    for key, value in skeleton.items():
        own = None if state is None else state[key]
        if isinstance(value, dict):
            filled[key] = _filled(value, own, processes, place, (*path, key))
        elif isinstance(value, _Hole):
            tensor = torch.empty(value.shape, dtype=value.dtype) if own is None else own.contiguous()
            filled[key] = place((*path, key), processes.share_tensor(tensor))
        else:
            filled[key] = value
    return filled
