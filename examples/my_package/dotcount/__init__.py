"""Register the methods of this package: a recipe that names `dotcount` under `plugins:` imports this file."""

from dotcount import filters  # noqa: F401
