"""A descriptor pool for this package, separate from the default pool of protobuf.

A pool refuses a second definition of the same message, and every client of the Open Inference Protocol (tritonclient,
kserve) brings its own. With a separate pool, all of them can be imported into one process, in any order. (Except with
PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python, which also registers every message in the default pool.)
"""

from google.protobuf.descriptor_pool import DescriptorPool

_POOL = DescriptorPool()


def Default() -> DescriptorPool:  # the name that generated code calls
    return _POOL
