"""The providers of the package, one file per need. Importing this registers all of them; a plug-in adds its own with `provides`."""

from vlmrl.train.stage.providers import averaged_reference, reach, score_mean, tokens

__all__ = ["averaged_reference", "reach", "score_mean", "tokens"]
