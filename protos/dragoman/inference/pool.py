"""The descriptors of this package, apart from protobuf's own pool.

A pool refuses a second definition of the same message, and every client of the Open Inference Protocol (tritonclient,
kserve) brings its own. With ours in a pool of their own, all can be imported in one process, in any order. (Not with
PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python, which enters every message in the common pool too.)
"""

from google.protobuf.descriptor_pool import DescriptorPool

_POOL = DescriptorPool()


def Default() -> DescriptorPool:  # as the generated code calls it
    return _POOL
