"""Which precision runs where."""

from typing import Literal

from dragoman_server.bundle.manifest import INTEGERS, Precision


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
