"""Numbers of GPUs as their data sheets give them. None was measured here; dense rates, without sparsity."""

from __future__ import annotations

from dataclasses import dataclass

from vlmrl.errors import ConfigError

G, T = 10**9, 10**12


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One type of GPU."""

    name: str
    memory: int
    """Bytes, as sold: decimal."""
    bf16: float
    """Dense bfloat16 products with float32 sums, operations per second."""
    fp32: float
    """The same in float32, outside tensor cores (torch's default for float32)."""
    bandwidth: float
    """Bytes per second from its memory."""
    link: float
    """Bytes per second to the other GPUs of a node, one direction: NVLink, else PCIe."""
    host: float
    """Bytes per second to the machine's memory, one direction."""
    multiprocessors: int
    source: str
    """The data sheet."""


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="h100",
            memory=80 * G,
            bf16=989 * T,
            fp32=67 * T,
            bandwidth=3350 * G,
            link=450 * G,
            host=64 * G,
            multiprocessors=132,
            source="NVIDIA H100 Tensor Core GPU data sheet, SXM5 80 GB",
        ),
        Gpu(
            name="h200",
            memory=141 * G,
            bf16=989 * T,
            fp32=67 * T,
            bandwidth=4800 * G,
            link=450 * G,
            host=64 * G,
            multiprocessors=132,
            source="NVIDIA H200 Tensor Core GPU data sheet, SXM",
        ),
        Gpu(
            name="a100",
            memory=80 * G,
            bf16=312 * T,
            fp32=19.5 * T,
            bandwidth=2039 * G,
            link=300 * G,
            host=32 * G,
            multiprocessors=108,
            source="NVIDIA A100 Tensor Core GPU data sheet, SXM4 80 GB",
        ),
        Gpu(
            name="l40s",
            memory=48 * G,
            bf16=362 * T,
            fp32=91.6 * T,
            bandwidth=864 * G,
            link=32 * G,
            host=32 * G,
            multiprocessors=142,
            source="NVIDIA L40S data sheet",
        ),
        Gpu(
            name="rtx4090",
            memory=24 * G,
            bf16=165.2 * T,
            fp32=82.6 * T,
            bandwidth=1008 * G,
            link=32 * G,
            host=32 * G,
            multiprocessors=128,
            source="NVIDIA Ada GPU Architecture white paper, GeForce RTX 4090",
        ),
        Gpu(
            name="a10",
            memory=24 * G,
            bf16=125 * T,
            fp32=31.2 * T,
            bandwidth=600 * G,
            link=32 * G,
            host=32 * G,
            multiprocessors=72,
            source="NVIDIA A10 Tensor Core GPU data sheet",
        ),
    )
}
NETWORK = 40 * G
"""Bytes per second between nodes for one GPU, one direction: 0.8 of a 400 Gbit/s adapter per GPU (NVIDIA DGX H100 data sheet)."""


def gpu_of(name: str) -> Gpu:
    """A GPU by its name, in any case.

    Raises:
        ConfigError: no such name.
    """
    found = GPUS.get(name.lower())
    if found is None:
        raise ConfigError(f"--gpu: expected one of {', '.join(GPUS)}, got '{name}'")
    return found
