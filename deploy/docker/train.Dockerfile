# The image that trains, on NVIDIA GPUs or CPUs; README.md beside this file explains how to build and run it.

# Python 3.11 or newer with venv, and a shell.
ARG BASE=python:3.13-slim-trixie

FROM ${BASE}
ARG BASE
# An index with another build of PyTorch than PyPI's, such as https://download.pytorch.org/whl/cpu without CUDA.
ARG TORCH_INDEX=https://pypi.org/simple
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Dragoman training" \
      org.opencontainers.image.description="Trains encoder-decoder Transformers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The Dragoman authors" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=/var/cache/pip PIP_ROOT_USER_ACTION=ignore
# A faster allocator, which dragoman-train uses if it finds it; bases other than Debian's do without.
# hadolint ignore=DL3008
RUN if command -v apt-get; then \
        apt-get update && apt-get install --yes --no-install-recommends libtcmalloc-minimal4 && \
        rm -rf /var/lib/apt/lists/*; \
    fi
COPY LICENSE NOTICE /licenses/
WORKDIR /build
# Without the code, so that the layer of libraries changes only with them.
COPY LICENSE NOTICE constraints.txt pyproject.toml ./
RUN --mount=type=cache,target=/var/cache/pip --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    touch README.md && \
    python3 -m venv /opt/dragoman && \
    /opt/dragoman/bin/pip install --constraint constraints.txt --extra-index-url "${TORCH_INDEX}" ".[training]"
COPY README.md ./
COPY protos ./protos
COPY server ./server
COPY training ./training
COPY export ./export
RUN --mount=type=cache,target=/var/cache/pip --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/dragoman/bin/pip install --no-deps --force-reinstall .
# Fails if a library does not work with this Python.
RUN ["/opt/dragoman/bin/python", "-c", "import dragoman_training.trainer, torch.distributed.run"]
# matplotlib and torch would write caches to a home that the user does not have.
ENV PATH=/opt/dragoman/bin:$PATH HOME=/tmp
WORKDIR /work
ENTRYPOINT ["dragoman-train"]
USER 10001:10001
