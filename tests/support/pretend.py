"""A device that this machine does not have: tensors say that they are on it, hold real values on the CPU, and refuse what CUDA refuses.

With it, everything that would meet a GPU first can be driven on a machine without one. An operation on tensors of two devices is an
error, as there; copies between the devices and waits of the host for the device are counted by the line of the package that made them.
In deterministic mode, an operation that CUDA has only in a version without a fixed order of summation is an error too (torch lets it
pass with a warning, because the trainer asks for warnings only).

    with Pretend() as fake:
        fake.move(policy.model)
        policy.device = fake.device
        ...
    assert fake.total("wait") == 3

The device is called `meta`: of all types of a CPU build it is the one that backward runs on and autocast leaves alone. Autocast is played:
inside `torch.autocast(fake.device.type, dtype)` products of matrices are computed in `dtype`. Values are right to rounding; what is
proven is where tensors are, of which type, and how often something waits.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")
PACKAGE = f"{Path(__file__).parents[2] / 'vlmrl'}/"
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Operations that take indices of the CPU for tensors of the device: a copy that nobody wrote down."""
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "addmm_", "convolution_backward"}
WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "equal",
    "is_nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "unique_consecutive",
    "repeat_interleave",
}
"""Operations whose result, or its size, the host must see before it goes on."""
UNORDERED = {"cumsum", "cumprod", "kthvalue", "median", "nanmedian", "histc", "put_", "scatter_reduce", "bincount", "logcumsumexp"}
"""Operations that `torch.use_deterministic_algorithms` lists as errors on CUDA, for floating-point numbers."""


class MixedDevices(RuntimeError):
    """An operation got tensors of two devices."""


class Unordered(RuntimeError):
    """An operation without a deterministic version on CUDA ran in deterministic mode."""


class OnDevice(torch.Tensor):
    """A tensor of the pretended device around one of the CPU."""

    elem: torch.Tensor

    @staticmethod
    def __new__(cls, elem: torch.Tensor) -> OnDevice:
        return torch.Tensor._make_wrapper_subclass(
            cls, elem.shape, strides=elem.stride(), storage_offset=elem.storage_offset(), dtype=elem.dtype, device=DEVICE
        )

    def __init__(self, elem: torch.Tensor):
        self.elem = elem

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"OnDevice({tuple(self.elem.shape)}, {self.elem.dtype})"

    def tolist(self) -> Any:
        current().count("wait", "tolist")
        return self.elem.tolist()

    def new_tensor(self, data: Any, dtype: Any = None, **more: Any) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.tensor(data, dtype=dtype or self.dtype, device=self.device, **more)

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert a tensor of the device to numpy: copy it to the CPU first")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return current().run(func, args, kwargs or {})


def current() -> Pretend:
    assert Pretend.stack, "a tensor of the pretended device is used outside of `with Pretend()`"
    return Pretend.stack[-1]


def pinned(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """`Tensor.pin_memory`: a copy in page-locked memory, which a copy to the device that does not block does not wait for."""
    del device
    assert not isinstance(tensor, OnDevice), "only memory of the host can be page-locked"
    out = tensor.clone()
    out.pinned = True  # pyright: ignore[reportAttributeAccessIssue]
    return out


def is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


class Cast:
    """`torch.autocast` for the pretended device, the real one for others."""

    real: ClassVar[Any] = torch.autocast
    on: ClassVar[list[torch.dtype | None]] = []
    dtype: torch.dtype | None

    def __new__(cls, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None) -> Any:
        if device_type != DEVICE.type:
            return cls.real(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
        self = super().__new__(cls)
        self.dtype = (dtype or torch.bfloat16) if enabled else None
        return self

    def __enter__(self) -> None:
        Cast.on.append(self.dtype)

    def __exit__(self, *_: object) -> None:
        Cast.on.pop()

    @staticmethod
    def dtype_now() -> torch.dtype | None:
        return Cast.on[-1] if Cast.on else None


class Pretend(TorchDispatchMode):
    """The device, and what was done on it: `counts` by (kind, what, line of the package)."""

    stack: ClassVar[list[Pretend]] = []

    def __init__(self) -> None:
        super().__init__()
        self.device = DEVICE
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.kernels: Counter[str] = Counter()
        """Operations on the device by name, views left out."""
        self._loud = True
        self._undo: list[tuple[Any, str, Any]] = []

    # ---- what tests ask ----

    def total(self, kind: str, of: str = "") -> int:
        """How often: `kind` is `wait`, `to device`, `to host` or `hidden`, `of` a part of the line or of the operation's name."""
        return sum(n for (k, what, where), n in self.counts.items() if k == kind and of in f"{what} {where}")

    def lines(self, kind: str) -> dict[str, int]:
        out: Counter[str] = Counter()
        for (k, what, where), n in self.counts.items():
            if k == kind:
                out[f"{where} {what}"] += n
        return dict(out)

    def reset(self) -> None:
        self.counts.clear()
        self.kernels.clear()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device; one that is there stays."""
        return tensor if isinstance(tensor, OnDevice) else OnDevice(tensor.detach().clone())

    def move(self, module: torch.nn.Module) -> None:
        """All parameters and buffers, tied ones once."""
        moved: dict[int, torch.nn.Parameter] = {}
        for part in module.modules():
            for name, p in list(part._parameters.items()):
                if p is not None:
                    if id(p) not in moved:
                        moved[id(p)] = torch.nn.Parameter(self.put(p), requires_grad=p.requires_grad)
                    part._parameters[name] = moved[id(p)]
            for name, b in list(part._buffers.items()):
                if b is not None:
                    part._buffers[name] = self.put(b)

    # ---- the device ----

    def __enter__(self) -> Pretend:
        Pretend.stack.append(self)
        self._swap(torch, "autocast", Cast)
        real_on, real_dtype, real_tensor = torch.is_autocast_enabled, torch.get_autocast_dtype, torch.tensor

        def enabled(device_type: str | None = None) -> bool:
            return Cast.dtype_now() is not None if device_type == DEVICE.type else real_on(*([] if device_type is None else [device_type]))

        def dtype(device_type: str) -> torch.dtype:
            return Cast.dtype_now() or torch.float32 if device_type == DEVICE.type else real_dtype(device_type)

        def tensor(data: Any, *, device: Any = None, **more: Any) -> torch.Tensor:
            if not is_there(device):
                return real_tensor(data, device=device, **more)
            self.count("to device", "tensor")
            self.count("wait", "tensor")
            return OnDevice(real_tensor(data, **more))

        real_as_tensor = torch.as_tensor

        def as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
            if isinstance(data, torch.Tensor) or not is_there(device):
                return (
                    data.to(device=device, dtype=dtype) if isinstance(data, OnDevice) else real_as_tensor(data, dtype=dtype, device=device)
                )
            return tensor(data, dtype=dtype, device=device)

        self._swap(torch, "as_tensor", as_tensor)
        self._swap(torch, "is_autocast_enabled", enabled)
        self._swap(torch, "get_autocast_dtype", dtype)
        self._swap(torch, "tensor", tensor)
        self._swap(torch.Tensor, "pin_memory", pinned)
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        while self._undo:
            owner, name, value = self._undo.pop()
            setattr(owner, name, value)
        Pretend.stack.remove(self)

    def _swap(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Within it nothing is counted and no order is asked for: the inside of a kernel that is written out."""
        before, self._loud = self._loud, False
        try:
            yield
        finally:
            self._loud = before

    def count(self, kind: str, what: str) -> None:
        if self._loud:
            self.counts[kind, what, where()] += 1

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.removeprefix("aten::")
        flat = pytree.tree_leaves((args, kwargs))
        there = [t for t in flat if isinstance(t, OnDevice)]
        here = [t for t in flat if isinstance(t, torch.Tensor) and not isinstance(t, OnDevice) and t.ndim > 0]
        wanted = is_there(kwargs["device"]) if kwargs.get("device") is not None else None
        if name in ("_to_copy", "copy_"):
            self._copies(name, args, kwargs, there, wanted)
        elif there and here:
            self._mixed(name, args, here)
        if there:
            self._look(name, args, there)
        plain_args, plain_kwargs = pytree.tree_map(lambda t: t.elem if isinstance(t, OnDevice) else t, (args, kwargs))
        if wanted:
            plain_kwargs["device"] = torch.device("cpu")
        if name in PRODUCTS and there:
            plain_args, plain_kwargs = _cast(name, (plain_args, plain_kwargs))
        out = func(*plain_args, **plain_kwargs)
        if name == "_local_scalar_dense" or not (there if wanted is None else wanted):
            return out
        if self._loud and there and not func.is_view:
            self.kernels[name] += 1
        if func._schema.is_mutable and args and isinstance(args[0], OnDevice) and isinstance(out, torch.Tensor) and out is plain_args[0]:
            return args[0]
        return pytree.tree_map(lambda t: OnDevice(t) if isinstance(t, torch.Tensor) else t, out)

    def _copies(self, name: str, args: Any, kwargs: dict[str, Any], there: list[OnDevice], wanted: bool | None) -> None:
        if name == "_to_copy":
            source, target = bool(there), bool(there) if wanted is None else wanted
        else:
            source, target = isinstance(args[1], OnDevice), isinstance(args[0], OnDevice)
            if args[1].ndim == 0 and not source:
                return  # a number of the host is an argument of the kernel
        if source and not target:
            self.count("to host", name)
            self.count("wait", "copy to host")
        elif target and not source:
            self.count("to device", name)
            behind = kwargs.get("non_blocking", False) or (name == "copy_" and args[2:3] == (True,))
            if not (behind and getattr(args[name == "copy_"], "pinned", False)):
                self.count("wait", "copy from pageable memory")

    def _mixed(self, name: str, args: Any, here: list[torch.Tensor]) -> None:
        if name in INDEXED and isinstance(args[0], OnDevice) and not any(x is t for t in here for x in args[2:3]):
            self.count("hidden", name)
            self.count("wait", f"{name} with indices of the host")
            return
        shapes = ", ".join(str(tuple(t.shape)) for t in here)
        raise MixedDevices(f"{name}: expected all tensors on the device, but found {shapes} on the CPU, at {where()}")

    def _look(self, name: str, args: Any, there: list[OnDevice]) -> None:
        if name in WAITS:
            self.count("wait", name)
        if name in INDEXED and any(
            isinstance(t, torch.Tensor) and t.dtype in (torch.bool, torch.uint8) for t in pytree.tree_leaves(args[1])
        ):
            self.count("wait", f"{name} by bool")
        if self._loud and name in UNORDERED and torch.are_deterministic_algorithms_enabled() and there[0].is_floating_point():
            raise Unordered(f"{name} has no deterministic version on CUDA, at {where()}")


def _cast(name: str, what: Any) -> Any:
    """Floating-point tensors in one type: that of autocast, or where backward meets two, the shorter one."""
    kinds = {t.dtype for t in pytree.tree_leaves(what) if isinstance(t, torch.Tensor) and t.is_floating_point()}
    dtype = Cast.dtype_now() if torch.float64 not in kinds else None
    if dtype is None and len(kinds) > 1 and torch.float64 not in kinds:
        dtype = torch.bfloat16 if name != "convolution_backward" else torch.float32
    if dtype is None:
        return what
    return pytree.tree_map(lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t, what)


def where() -> str:
    """`file.py:line` of the innermost frame in the package, else in transformers."""
    frame: FrameType | None = sys._getframe(1)
    other = "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return f"{name.removeprefix(PACKAGE)}:{frame.f_lineno}"
        if other == "?" and "/transformers/" in name:
            other = f"transformers/{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return other
