"""The folder that goes to a hub: the files of a checkpoint, its card, and its recipe."""

from __future__ import annotations

from pathlib import Path

import yaml

from vlmrl.extras.publish.card import CARD, RECIPE, card
from vlmrl.extras.publish.facts import Facts
from vlmrl.extras.publish.files import Chosen, choose, stage


def fill(target: Path, facts: Facts, folder: Path, *, repo: str, licence: str) -> Chosen:
    """Fill an empty folder with what is published of a model folder.

    Raises:
        ConfigError: there are no weights in it.
        StorageError: the disk refused.
    """
    stages = (facts.recipe or {}).get("stages", [])
    chosen = choose(folder, with_adapter=facts.base_model is not None and len(stages) == 1)
    texts = {CARD: card(facts, repo=repo, licence=licence)}
    if facts.recipe is not None:
        texts[RECIPE] = yaml.safe_dump(dict(facts.recipe), sort_keys=False, allow_unicode=True)
    stage(chosen, target, texts, base_model=facts.base_model)
    return chosen
