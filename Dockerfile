# PyTorch with tightfit:
#
#   docker build --tag tightfit .
#   docker run --gpus all tightfit tightfit doctor --preload
#   docker run --gpus all --volume "$PWD:/work" tightfit tightfit run -- python train.py
#
# For an image of your own that has Python 3.11 or later and PyTorch:
#   docker build --build-arg BASE=my-image --build-arg TORCH= .
ARG BASE=python:3.12-slim

# The oldest system library that the wheel is to run on decides where it is built; this image has GNU ld, as it needs.
FROM quay.io/pypa/manylinux_2_28_x86_64 AS build
RUN curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain none
ENV PATH=/root/.cargo/bin:/opt/python/cp311-cp311/bin:$PATH
WORKDIR /source
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels ./crates/python

FROM ${BASE}
# CUDA builds of PyTorch include cuDNN 9. Empty if the base image has PyTorch.
ARG TORCH=torch
RUN if [ -n "${TORCH}" ]; then pip install --no-cache-dir ${TORCH}; fi
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels pip install --no-cache-dir /wheels/tightfit-*.whl
WORKDIR /work
