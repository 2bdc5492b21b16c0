"""On the path of a rollout server on a CPU, whose vLLM starts processes of its own: torchvision loads in each (`vlmrl.compat`)."""

import vlmrl  # noqa: F401
