"""vlmrl: reinforcement learning for vision-language models. Importing it costs milliseconds: nothing heavy is imported here.

`grpo`, `sft`, `rows`, `load_recipe`, `check`, `train`, `evaluate`, `compare`, `ask`, the registries of methods and `EndpointEngine` are
imported when they are first used (docs/python.md).
"""

import time as _time
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from vlmrl.compat import install_hook as _install_hook

if _TYPE_CHECKING:
    from vlmrl import train
    from vlmrl.algo.registries import advantage, policy_loss, reward_shaping, rollout_filter
    from vlmrl.answers.base import answer_type
    from vlmrl.api import ask, check, compare, evaluate, load_recipe
    from vlmrl.protocols import reward, sampler

__version__ = "0.1.0"
STARTED = _time.perf_counter()
"""When this process first imported the package: what `time/to_first_rl_step` counts from."""
_install_hook()  # torchvision next to a CPU-only torch: looked at only if somebody imports torchvision

__all__ = ["__version__", "ask", "check", "compare", "evaluate", "load_recipe"]
__all__ += ["advantage", "answer_type", "policy_loss", "reward", "reward_shaping", "rollout_filter", "sampler"]
__all__ += ["EndpointEngine", "grpo", "rows", "sft", "train"]  # pyright: ignore[reportUnsupportedDunderAll] (by name only; a package)
_FROM = {
    "vlmrl.api": ("load_recipe", "check", "evaluate", "compare", "ask"),
    "vlmrl.algo.registries": ("advantage", "policy_loss", "reward_shaping", "rollout_filter"),
    "vlmrl.answers.base": ("answer_type",),
    "vlmrl.extras.judges.endpoint": ("EndpointEngine",),
    "vlmrl.extras.python.checked": ("rows",),
    "vlmrl.extras.python.train": ("grpo", "sft"),
    "vlmrl.protocols": ("reward", "sampler"),
}
"""Module -> what of it is offered here. `train` is the package of that name, which can be called."""


def __getattr__(name: str) -> _Any:
    if name == "train":
        return _import_module("vlmrl.train")
    for module, offered in _FROM.items():
        if name in offered:
            return getattr(_import_module(module), name)
    raise AttributeError(f"module 'vlmrl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
