# Learners and actors for a cluster: docker build -t gossamer .
# PyPI's torch for Linux brings CUDA, which machines without GPUs do not mind. A smaller image for CPUs alone:
# --build-arg TORCH=torch==2.13.0+cpu --build-arg TORCH_INDEX=URL, with the URL of PyTorch's wheels (pytorch.org, "Get Started").
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
ARG EXTRAS=atari,mujoco,cluster
# KubeRay's probes need wget, and Ray's dashboard agent (below).
RUN apt-get update && apt-get install -y --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
WORKDIR /gossamer
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN sed -i '/^torch==/d' constraints.txt
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$TORCH" ".[$EXTRAS]"
RUN case "$EXTRAS" in *cluster*) pip install --no-cache-dir "ray[default]==$(python -c 'import ray; print(ray.__version__)')";; esac
RUN useradd --create-home gossamer
USER gossamer
WORKDIR /home/gossamer
ENV RAY_USAGE_STATS_ENABLED=0
CMD ["gossamer", "--help"]
