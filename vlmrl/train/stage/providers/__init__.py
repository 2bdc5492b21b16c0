"""The providers of the package, one file per need. Importing this registers all of them; a plug-in adds its own with `provides`."""

from vlmrl.train.stage.providers import (
    adv_median,
    averaged_reference,
    belief,
    items,
    logit_step,
    paragraphs,
    pieces,
    questions,
    reach,
    reliance,
    rows,
    score_mean,
    sibling,
    tempered,
    tokens,
    turns,
)

__all__ = [
    "adv_median",
    "averaged_reference",
    "belief",
    "items",
    "logit_step",
    "paragraphs",
    "pieces",
    "questions",
    "reach",
    "reliance",
    "rows",
    "score_mean",
    "sibling",
    "tempered",
    "tokens",
    "turns",
]
