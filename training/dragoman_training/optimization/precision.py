"""The precision of matrix products: what is fast on a device."""

from typing import Literal, NamedTuple

import torch

Precision = Literal["fp32", "bf16"]

# By the names of torch.cpu.get_capabilities: those of x86, and that of Arm.
_FAST_BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "BF16 instructions"}


class Resolved(NamedTuple):
    """The precision of a run on one machine.

    Attributes:
        name: Precision of matrix products.
        line: What the user should know about it; empty if nothing.
    """

    name: Precision
    line: str


def resolve_precision(choice: Literal["auto", "fp32", "bf16"], device: torch.device) -> Resolved:
    """Returns the precision to train with; auto is bf16 where the hardware multiplies it, else fp32."""
    fast, reason = _gpu_bf16(device) if device.type == "cuda" else _cpu_bf16()
    if choice == "auto":
        name: Precision = "bf16" if fast else "fp32"
        return Resolved(name, f"training.precision: auto is {name} here: {reason}")
    if choice == "bf16" and not fast:
        line = f"warning: training.precision: bf16 can be 20 times slower than fp32 here: {reason}; auto takes fp32"
        return Resolved(choice, line)
    return Resolved(choice, "")


def _cpu_bf16() -> tuple[bool, str]:
    """Returns whether bf16 is fast on this CPU, and why."""
    capabilities = torch.cpu.get_capabilities()
    found = [name for key, name in _FAST_BF16.items() if capabilities.get(key)]
    if not found:
        return False, "this CPU has neither AMX nor AVX512-BF16"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False, "this build of PyTorch lacks oneDNN"
    return True, f"this CPU has {found[0]}"


def _gpu_bf16(device: torch.device) -> tuple[bool, str]:
    """Returns whether bf16 is fast on this GPU, and why."""
    fast = torch.cuda.is_bf16_supported(including_emulation=False)
    return fast, f"this GPU ({torch.cuda.get_device_name(device)}) {'has' if fast else 'lacks'} bf16"
