"""Rewards. Importing this package registers all of them."""

from vlmrl.rewards import exact, format, temporal_iou

__all__ = ["exact", "format", "temporal_iou"]
