# vlmrl on a CPU: checks of recipes and data, the toy worlds, evaluation of small models. From the top of a checkout:
#   docker build -f docker/cpu.Dockerfile -t vlmrl:cpu [--build-arg TORCH_INDEX=URL] .
#   docker run --rm -v "$PWD/runs:/workspace/runs" vlmrl:cpu train toy_video
# TORCH_INDEX: package index with torch's CPU builds. Without it torch comes from pip's own index, which may hold the CUDA build (several GB).
FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
WORKDIR /src
COPY constraints constraints
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints/cpu-py311.txt)"
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY vlmrl vlmrl
COPY configs configs
COPY evals evals
COPY data data
COPY examples examples
RUN pip install ".[lora]" -c constraints/cpu-py311.txt && vlmrl check toy_video --no-data
RUN useradd --create-home --uid 1000 vlmrl && mkdir /workspace && chown vlmrl /workspace
USER vlmrl
WORKDIR /workspace
ENTRYPOINT ["vlmrl"]
CMD ["--help"]
