"""The engines of the package, by their registration."""

from vlmrl.train.shard import ddp  # noqa: F401
