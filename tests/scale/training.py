"""The paper plan of data-parallel training: what a step computes and communicates on many GPUs, and its efficiency.

Nothing of it was measured. DistributedDataParallel reduces gradients in buckets while the backward pass goes on, so a
step takes forward + max(backward, all-reduce) + the last bucket, which has nothing left to hide behind.
"""

from dataclasses import dataclass

BUCKET_BYTES = 25 * 2**20  # default of DistributedDataParallel


@dataclass(frozen=True)
class Shape:
    """Sizes of an encoder-decoder Transformer with separate source and target tables, the latter tied to the output."""

    d_model: int = 512
    d_ff: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    vocabulary: int = 32_000

    @property
    def encoder(self) -> int:
        """Weights of matrices that each source token is multiplied with."""
        return self.encoder_layers * (4 * self.d_model**2 + 2 * self.d_model * self.d_ff)

    @property
    def decoder(self) -> int:
        """Weights of matrices that each target token is multiplied with; keys and values of the source are here too."""
        return self.decoder_layers * (8 * self.d_model**2 + 2 * self.d_model * self.d_ff)

    @property
    def table(self) -> int:
        return self.vocabulary * self.d_model

    @property
    def parameters(self) -> int:
        """Without biases and norms, which are less than one in two hundred."""
        return self.encoder + self.decoder + 2 * self.table

    def flops(self, tokens: float) -> float:
        """Returns the operations of a step with so many source and as many target tokens: 6 for each weight and token.

        Attention between tokens is left out: at 30 tokens a sentence it adds about one in a hundred.
        """
        return 6 * tokens * (self.encoder + self.decoder + self.table)


@dataclass(frozen=True)
class Machines:
    """GPUs and their networks; every number is an assumption to replace by a measurement.

    Attributes:
        nodes, gpus: Nodes, and GPUs of each.
        flops: Operations per second that training reaches on a GPU.
        inside: Bytes per second of a GPU's links within the node, as nccl-tests report them ("busbw").
        between: Bytes per second of all network cards of a node together.
    """

    name: str
    nodes: int
    gpus: int
    flops: float
    inside: float
    between: float

    @property
    def count(self) -> int:
        return self.nodes * self.gpus

    def all_reduce(self, size: float) -> float:
        """Returns the seconds to sum `size` bytes over all GPUs.

        Within nodes, each GPU sends and receives 2 (g - 1) / g of it; between nodes, each node does 2 (n - 1) / n.
        """
        inside = 2 * (self.gpus - 1) / self.gpus * size / self.inside
        return inside + 2 * (self.nodes - 1) / self.nodes * size / self.between


@dataclass(frozen=True)
class Step:
    """A training step on paper.

    Attributes:
        tokens: Source tokens, and as many target tokens, of each GPU.
    """

    shape: Shape
    machines: Machines
    tokens: float

    @property
    def gradient_bytes(self) -> int:
        """DistributedDataParallel reduces gradients in fp32, also under autocast."""
        return 4 * self.shape.parameters

    @property
    def sent_bytes(self) -> float:
        """Bytes that each GPU sends, and as many that it receives."""
        count = self.machines.count
        return 2 * (count - 1) / count * self.gradient_bytes

    @property
    def compute(self) -> float:
        return self.shape.flops(self.tokens) / self.machines.flops

    @property
    def communication(self) -> float:
        return self.machines.all_reduce(self.gradient_bytes)

    @property
    def seconds(self) -> float:
        last = self.machines.all_reduce(BUCKET_BYTES)
        forward, backward = self.compute / 3, 2 * self.compute / 3
        return forward + max(backward, self.communication - last) + last

    @property
    def efficiency(self) -> float:
        return self.compute / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second of all GPUs."""
        return self.machines.count * self.tokens / self.seconds


H100 = 0.3 * 989e12  # 30 % of the dense bf16 peak of its data sheet
NVLINK, FAST, ETHERNET = 370e9, 400e9, 12.5e9
MACHINES = (
    Machines("8 GPUs in one node, NVLink", 1, 8, H100, NVLINK, FAST),
    Machines("8 nodes of 1 GPU, 100 Gbit/s", 8, 1, H100, NVLINK, ETHERNET),
    Machines("8 nodes of 8 GPUs, 3,200 Gbit/s a node", 8, 8, H100, NVLINK, FAST),
    Machines("8 nodes of 8 GPUs, 100 Gbit/s a node", 8, 8, H100, NVLINK, ETHERNET),
)
PAPER_TOKENS = 25_000  # target tokens of a step in "Attention Is All You Need", and as many source tokens
