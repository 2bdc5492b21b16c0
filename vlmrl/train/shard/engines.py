"""The engines of the package, by their registration."""

from vlmrl.train.shard import ddp, fsdp, zero  # noqa: F401
