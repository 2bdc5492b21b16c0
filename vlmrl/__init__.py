"""vlmrl: reinforcement learning for vision-language models. Importing it costs milliseconds: nothing heavy is imported here."""

import time as _time

from vlmrl.compat import install_hook as _install_hook

__version__ = "0.1.0"
STARTED = _time.perf_counter()
"""When this process first imported the package: what `time/to_first_rl_step` counts from."""
_install_hook()  # torchvision next to a CPU-only torch: looked at only if somebody imports torchvision
