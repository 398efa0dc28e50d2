"""Which precision runs where."""

import platform
from pathlib import Path
from typing import Literal

from server.bundle.manifest import INTEGERS, Precision

CPU_FLAGS = Path("/proc/cpuinfo")


def unfit_for_gpus(precision: Precision) -> str | None:
    """Why a precision is not for GPUs, as the end of a sentence; None where it is."""
    if precision in INTEGERS:
        return f"the model is {precision}, which is for CPUs; dragoman-export --precision fp16 makes one for GPUs"
    return None


def unfit_for_cpus(precision: Precision) -> str | None:
    """Why no CPU runs a precision, as the end of a sentence; None where it does."""
    if precision == "bf16":
        return "the model is bf16, which is for GPUs; dragoman-export --precision int8 makes one for CPUs"
    return None


def warning(precision: Precision, kind: Literal["cpu", "cuda"]) -> str | None:
    """Why a precision is a poor choice for a device that runs it; None where it is not."""
    if kind == "cpu" and precision == "fp16":
        return "the model is fp16, which a CPU computes in fp32 after converting it; int8 or fp32 is faster there"
    return None


def saturates(cpu_flags: Path = CPU_FLAGS, machine: str | None = None) -> bool:
    """Whether this CPU's fastest product of 8-bit integers may overflow.

    x86 without VNNI adds two products of unsigned and signed bytes in 16 bits, where 255 * 127 * 2 does not fit; ONNX
    Runtime takes an exact, slower one if it is told to. It does not look whether the CPU has VNNI.

    Args:
        machine: what to take for the kind of this machine; see `platform.machine`.
    """
    if (machine or platform.machine()).lower() not in ("x86_64", "amd64", "i686", "x86"):
        return False
    try:
        flags = cpu_flags.read_text(encoding="utf-8").split()
    except OSError:
        return True  # exact, and slower than need be where it has VNNI
    return not {"avx512_vnni", "avx_vnni"} & set(flags)
