"""The encoder and decoder sessions of a bundle on one device."""

from itertools import count

import numpy as np
import onnxruntime as ort
import structlog

from dragoman_server.bundle.load import Bundle
from dragoman_server.runtime.buffers import CACHE_DTYPES, LISTED_DTYPES, Stream
from dragoman_server.runtime.cuda import CudaStream
from dragoman_server.runtime.device import Device, DeviceError, open_session
from dragoman_server.runtime.graph_check import check_caches, check_names

log = structlog.get_logger()

MAX_CUDA_GRAPHS = 256


class Sessions:
    """The encoder and decoder of a bundle, loaded.

    ONNX Runtime lets several threads run one session at the same time. On a CPU, engines with single-threaded operators
    share the sessions and hold the weights once. On a GPU each engine has its own sessions: they work on one stream,
    and a CUDA graph that one engine captures would include what another enqueues there.

    Args:
        max_cuda_graphs: The most steps to capture as CUDA graphs, if the device supports it.

    Attributes:
        stream: The CUDA stream of both sessions; None on a CPU.
        max_cuda_graphs: 0 if graphs cannot be captured.
        graph_ids: Identifiers for captured CUDA graphs, unique per decoder session.
        cache_dtype: Element type of the caches.
        listed_dtype: Element type of the weights of shortlists; None if steps keep none.
        compute_dtype: Element type that the graphs compute with.
        min_rows: The rows every step needs, see `Runtime`; None until the first runtime measures it.

    Raises:
        BundleError: The graphs do not match the manifest.
        DeviceError: The device cannot run them.
    """

    def __init__(self, bundle: Bundle, device: Device, threads: int, *, max_cuda_graphs: int = MAX_CUDA_GRAPHS) -> None:
        self.bundle = bundle
        self.device = device
        self.threads = threads
        self.graph_ids = count(1)
        self.min_rows: int | None = None
        stream = None if device.kind == "cpu" else _open_stream(device)
        self.stream: Stream | None = stream
        self.encoder = open_session(bundle.encoder, device, threads, stream)
        self.max_cuda_graphs = 0 if stream is None else max_cuda_graphs
        self.decoder = self._open_decoder(stream)
        check_names(bundle, bundle.manifest.graphs.encoder, self.encoder)
        check_names(bundle, bundle.manifest.graphs.decoder, self.decoder)
        check_caches(bundle, self.encoder, self.decoder)
        cache_type = next(node.type for node in self.decoder.get_inputs() if node.name == "self_key_0")
        self.cache_dtype = CACHE_DTYPES[cache_type]
        listed = (node.type for node in self.decoder.get_inputs() if node.name == "short_weights")
        self.listed_dtype = LISTED_DTYPES.get(next(listed, ""))
        self.compute_dtype = np.dtype(np.float32) if self.cache_dtype == np.int8 else self.cache_dtype

    def _open_decoder(self, stream: CudaStream | None) -> ort.InferenceSession:
        path = self.bundle.decoder
        if self.max_cuda_graphs:
            try:
                return open_session(path, self.device, self.threads, stream, cuda_graphs=True)
            except DeviceError as error:
                log.warning("steps are not recorded as CUDA graphs, which makes them slower", reason=str(error))
                self.max_cuda_graphs = 0
        return open_session(path, self.device, self.threads, stream)


def _open_stream(device: Device) -> CudaStream:
    try:
        return CudaStream(device.index)
    except (OSError, RuntimeError, MemoryError) as error:
        raise DeviceError(f"{device} can't be used: {error}") from None
