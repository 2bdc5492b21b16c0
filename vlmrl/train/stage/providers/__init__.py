"""The providers of core methods, one file per need. Importing this registers them; the zoo and plug-ins add theirs with `provides`."""

from vlmrl.train.stage.providers import reach, rows, score_mean, tokens, turns

__all__ = ["reach", "rows", "score_mean", "tokens", "turns"]
