"""Imports vlmrl at the start of a benchmark's processes, the engines' own included: torchvision next to a CPU torch (vlmrl/compat.py)."""

import vlmrl  # noqa: F401
