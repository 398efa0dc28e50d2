# The image that imports models of the Hugging Face hub; README.md beside this file explains how to build and run it.

# Python 3.11 or newer with venv, and a shell.
ARG BASE=python:3.13-slim-trixie

FROM ${BASE}
ARG BASE
# Where PyTorch comes from: there without CUDA, which is larger than all the rest and which an import does not use.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Dragoman import" \
      org.opencontainers.image.description="Imports encoder-decoder Transformers of the Hugging Face hub for Dragoman" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The Dragoman authors" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=/var/cache/pip PIP_ROOT_USER_ACTION=ignore
COPY LICENSE NOTICE /licenses/
WORKDIR /build
# Without the code, so that the layer of libraries changes only with them.
COPY LICENSE NOTICE constraints.txt pyproject.toml ./
RUN --mount=type=cache,target=/var/cache/pip --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    touch README.md && \
    python3 -m venv /opt/dragoman && \
    /opt/dragoman/bin/pip install --constraint constraints.txt --extra-index-url "${TORCH_INDEX}" ".[import]"
COPY README.md ./
COPY protos ./protos
COPY server ./server
COPY training ./training
COPY export ./export
RUN --mount=type=cache,target=/var/cache/pip --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/dragoman/bin/pip install --no-deps --force-reinstall .
# Fails if a library does not work with this Python.
RUN ["/opt/dragoman/bin/python", "-c", "import dragoman_export.export, huggingface_hub, sentencepiece, transformers"]
ENV HOME=/tmp
WORKDIR /
ENTRYPOINT ["/opt/dragoman/bin/dragoman-export"]
USER 10001:10001
