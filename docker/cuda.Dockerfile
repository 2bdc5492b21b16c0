# vlmrl on NVIDIA GPUs. torch's wheels bring CUDA, so the host needs its driver and NVIDIA's container toolkit, and the image no CUDA of its own.
#   docker build -f docker/cuda.Dockerfile -t vlmrl:cuda [--build-arg TORCH_INDEX=URL] .
#   docker run --rm --gpus all --ipc=host -v "$PWD:/workspace" vlmrl:cuda train mine.yaml
# TORCH_INDEX: package index with torch's builds for another CUDA than constraints/gpu.txt names, where the driver is older.
# --ipc=host: NCCL and the decoding processes share memory, of which a container has 64 MB by default.
FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# triton compiles the launchers of its kernels with a C compiler when they first run
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints constraints
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints/gpu.txt)"
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY vlmrl vlmrl
COPY configs configs
COPY evals evals
COPY data data
COPY examples examples
RUN pip install ".[lora,liger,deepspeed,bitsandbytes]" -c constraints/gpu.txt && vlmrl check toy_video --no-data
RUN useradd --create-home --uid 1000 vlmrl && mkdir /workspace && chown vlmrl /workspace
USER vlmrl
WORKDIR /workspace
ENTRYPOINT ["vlmrl"]
CMD ["--help"]
