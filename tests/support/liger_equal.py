"""A tiny decoder with torch's kernels and with Liger's in one process: the largest differences of last layer and gradients, as JSON.

Triton's interpreter must be on before Triton is imported (`TRITON_INTERPRET=1`) where there is no CUDA device, hence a process of its own.

    python -m tests.support.liger_equal qwen2_5_vl cpu
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch

from tests.support.saved_bytes import build
from vlmrl.policy.liger import fuse


def what_the_interpreter_lacks() -> None:
    """Triton's interpreter hands a Python float to a kernel as it is, where a compiled kernel has a scalar with `.to`; and functions of
    CUDA's libdevice do nothing in it. Liger's kernels use both."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    language = importlib.import_module("triton.language")
    import numpy

    before = interpreter._implicit_cvt

    def convert(arg: Any) -> Any:
        if isinstance(arg, float):
            return language.tensor(interpreter.TensorHandle(numpy.array([arg], dtype=numpy.float32), language.float32), language.float32)
        return before(arg)

    interpreter._implicit_cvt = convert
    importlib.import_module("liger_kernel.ops.rms_norm").rsqrt = lambda x: language.math.rsqrt(x)


def run(model: Any, device: str) -> dict[str, torch.Tensor]:
    """Last hidden states and the gradient of every weight of the decoder, for positions of three kinds as a picture gives them."""
    draws = torch.Generator().manual_seed(1)
    decoder = model.model.language_model
    model.zero_grad()
    inputs = torch.randn(2, 9, 32, generator=draws).to(device)
    positions = torch.randint(0, 30, (3, 2, 9), generator=draws).to(device)
    out = decoder(inputs_embeds=inputs, position_ids=positions, use_cache=False).last_hidden_state
    (out * torch.randn(out.shape, generator=draws).to(device)).sum().backward()
    return {"hidden": out.detach(), **{name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}}


def main(family: str, device: str) -> None:
    if device == "cpu":
        what_the_interpreter_lacks()
    torch.manual_seed(0)
    model = build(family, hidden=32, layers=2, heads=2, kv_heads=1, mlp=48, vision={"hidden": 16, "depth": 1, "heads": 2, "mlp": 32})
    model = model.to(device).eval()
    plain = run(model, device)
    fuse(model, device=torch.device(device))
    fused = run(model, device)
    assert plain.keys() == fused.keys()
    apart = {name: float((fused[name] - value).abs().max() / value.abs().max().clamp_min(1e-6)) for name, value in plain.items()}
    liger = sorted({m.forward.__name__ for m in model.model.language_model.modules() if m.forward.__module__ == fuse.__module__})
    bits = any(not torch.equal(fused[name], value) for name, value in plain.items())
    print(json.dumps({"apart": max(apart.values()), "names": len(apart), "liger": liger, "other bits": bits}))


if __name__ == "__main__":
    main(*sys.argv[1:])
