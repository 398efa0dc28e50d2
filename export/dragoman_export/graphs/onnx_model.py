"""An ONNX model whose weights are arrays beside its protocol buffer, which could hold only 2 GiB of them."""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from dragoman_export.graphs.mapped_file import MappedFile

Array = NDArray[Any]

WEIGHTS_FILE = "weights.bin"
SMALLEST_WEIGHT = 256  # bytes; smaller tensors may be shapes or axes, which ONNX Runtime needs inside the graph


class OnnxModel:
    """An ONNX model and its weights.

    Args:
        proto: The model. Its initializers may have their contents inside, as those below `SMALLEST_WEIGHT` always do.
        weights: Contents of the other initializers by name: views of a file or of PyTorch's parameters, not copies.
        keys: Identities of the weights where they are known, see `key`.
        file: The file that the weights are in, at the offsets that the initializers say; None if they are in none.

    Attributes:
        proto: The model.
        weights: Contents of the initializers that are not inside; replaced, but never written to.
        file: See above.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        weights: Mapping[str, Array] | None = None,
        keys: Mapping[str, str] | None = None,
        file: MappedFile | None = None,
    ) -> None:
        self.proto, self.file = proto, file
        self.weights: dict[str, Array] = dict(weights or {})
        self._keys = dict(keys or {})
        self._new: set[str] = set()  # weights that are not in the file

    @property
    def graph(self) -> onnx.GraphProto:
        """The graph of the model."""
        return self.proto.graph

    def copy(self) -> "OnnxModel":
        """Returns a copy to rewrite, which shares the weights."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        result = OnnxModel(proto, self.weights, self._keys, self.file)
        result._new |= self._new
        return result

    def release(self) -> None:
        """Gives back the memory of the weights in the file, which are read again when they are used again."""
        if self.file is not None:
            self.file.release()

    def with_new_weights_inside(self) -> onnx.ModelProto:
        """Returns a copy of the model that has the weights inside which are not in the file."""
        proto = self.copy().proto
        for tensor in proto.graph.initializer:
            if tensor.name in self.weights and (self.file is None or tensor.name in self._new):
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(self.weights[tensor.name]), tensor.name))
        return proto

    def values(self, tensor: TensorProto) -> Array:
        """Returns the content of an initializer."""
        values = self.weights.get(tensor.name)
        return numpy_helper.to_array(tensor) if values is None else values

    def key(self, tensor: TensorProto) -> str:
        """Returns the identity of an initializer's content: the same in every graph of a bundle that has it."""
        if tensor.name not in self._keys:
            content = np.ascontiguousarray(self.values(tensor))
            self._keys[tensor.name] = hashlib.sha256(content.view(np.uint8).data).hexdigest()
        return self._keys[tensor.name]

    def keep_weights(self, names: Collection[str]) -> None:
        """Forgets the contents of all other initializers."""
        self.weights = {name: values for name, values in self.weights.items() if name in names}

    def new_tensor(self, name: str, values: Array) -> TensorProto:
        """Keeps new contents, and returns the initializer that stands for them in a graph."""
        self._keys.pop(name, None)
        if values.nbytes < SMALLEST_WEIGHT:
            self.weights.pop(name, None)
            return numpy_helper.from_array(np.asarray(values), name)
        self.weights[name] = values
        self._new.add(name)
        return weight_tensor(name, values)


def weight_tensor(name: str, values: Array, offset: int = 0) -> TensorProto:
    """Returns an initializer whose content is in the weights file, from a byte on."""
    tensor = TensorProto(
        name=name,
        dims=values.shape,
        data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
        data_location=TensorProto.EXTERNAL,
    )
    for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", values.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
