"""`vlmrl.grpo` and `vlmrl.sft`: one call with Python's own things makes a recipe, and `vlmrl.train` trains it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vlmrl import api
from vlmrl.config.schema import Config, SourceSection
from vlmrl.errors import ConfigError
from vlmrl.extras.python.result import Run
from vlmrl.extras.python.rewards import of_recipe
from vlmrl.extras.python.rows import RowsFile, given, said_by_row
from vlmrl.run.ui import Ui
from vlmrl.train import dist

RUNS = "runs"
RATES = {"grpo": 1e-5, "sft": 1e-4}
"""Learning rates of adapters, where the call says none: they want more than whole weights, whose rate is the recipe's default."""
_SOURCE = set(SourceSection.model_fields) - {"path"}
_SECTIONS = set(Config.model_fields) - {"stages"}


def grpo(
    model: str | Path,
    rows: Any,
    reward: Any,
    *,
    lora: int | Mapping[str, Any] | None = 16,
    steps: int = 200,
    out: str | Path | None = None,
    eval_rows: Any = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    **recipe_keys: Any,
) -> Run:
    """Train a model by GRPO on rows and rewards of Python. The same call resumes an interrupted run, and returns a finished one at once.

    Args:
        model: folder or hub id.
        rows: a list of dicts, a `datasets.Dataset`, a pandas DataFrame, or a file; pictures are PIL images, arrays, bytes or paths.
        reward: a function (our form, TRL's, verl's or EasyR1's, told by its parameters), the name of a reward, or a list of such, each
            alone or as (reward, weight).
        lora: rank of the adapters (alpha is twice that), a mapping with the keys of `model.lora`, or None to train the weights.
        steps: optimizer updates.
        out: folder of the run. None: `runs/grpo-<digest of the recipe>`, so that another call is another run.
        eval_rows: held-out rows, asked before and after training.
        overrides: as on the command line, `stages.rl.optim.lr=1e-6`.
        quiet: say nothing on stdout.
        recipe_keys: keys of the stage (`rollout={"num_generations": 4}`), of its source (`answer_type="number"`), and whole sections
            (`run`, `media`, `data`, ...).

    Returns:
        The run: `.model`, `.curves`, `.groups()`, `.evaluate(rows)`, `.show()`.

    Raises:
        ConfigError: what is given makes no recipe; nothing was started.
        DataError: a row cannot be used; names its number, from 0, and the column.
        VlmrlError: as `vlmrl.train`; what was saved stays.
    """
    rewards, notes = of_recipe(reward)
    stage = {"name": "rl", "kind": "grpo", "rewards": rewards}
    return _train(stage, model, rows, lora, steps, out, eval_rows, overrides, recipe_keys, Ui(quiet=quiet), notes)


def sft(
    model: str | Path,
    rows: Any,
    *,
    lora: int | Mapping[str, Any] | None = 16,
    steps: int = 200,
    out: str | Path | None = None,
    eval_rows: Any = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    **recipe_keys: Any,
) -> Run:
    """Fine-tune a model on the gold answers of rows, and on their thoughts where they have some. Otherwise as `vlmrl.grpo`, whose
    arguments it has but for the reward.

    Raises:
        ConfigError, DataError, VlmrlError: as `vlmrl.grpo`.
    """
    return _train({"name": "sft", "kind": "sft"}, model, rows, lora, steps, out, eval_rows, overrides, recipe_keys, Ui(quiet=quiet), [])


def _train(
    stage: dict[str, Any],
    model: str | Path,
    rows: Any,
    lora: int | Mapping[str, Any] | None,
    steps: int,
    out: str | Path | None,
    eval_rows: Any,
    overrides: Sequence[str],
    keys: Mapping[str, Any],
    ui: Ui,
    notes: Sequence[str],
) -> Run:
    """Make the recipe of a call, say it, and train it."""
    if "root" in keys.get("data", {}):
        raise ConfigError("data.root: rows and eval_rows say themselves where they lie; leave it out")
    kind = str(stage["kind"])
    folder = Path(RUNS) if out is None else Path(out).parent
    of_source = {key: value for key, value in {**keys, **keys.get("source", {})}.items() if key in _SOURCE}
    train, held_out = (None if one is None else given(one, folder, of_source).looked(of_source) for one in (rows, eval_rows))
    if train is None:
        raise ConfigError("rows: None is given; give a list of dicts, a Dataset, a DataFrame or a file")
    recipe: dict[str, Any] = {key: value for key, value in keys.items() if key in _SECTIONS}
    recipe["model"] = {"path": str(model), **({} if not lora else {"lora": _lora(lora)})}
    stage |= {"source": train.source(of_source), "steps": steps}
    stage |= {key: value for key, value in keys.items() if key not in _SECTIONS | _SOURCE | {"source"}}
    if lora:
        stage["optim"] = {"lr": RATES[kind], **stage.get("optim", {})}
    recipe["stages"] = [stage]
    if held_out is not None:
        recipe["eval"] = {"source": held_out.source(of_source), **keys.get("eval", {})}
    name = Path(out).name if out is not None else f"{kind}-{_digest(recipe, overrides)}"
    recipe = {"run": {"name": name, "root": str(folder), **keys.get("run", {})}, **{k: v for k, v in recipe.items() if k != "run"}}
    return _start(recipe, overrides, (train, held_out), ui, notes)


def _start(recipe: Mapping[str, Any], overrides: Sequence[str], files: Sequence[RowsFile | None], ui: Ui, notes: Sequence[str]) -> Run:
    with said_by_row(*files):
        loaded = api.load_recipe(recipe, overrides)
        if dist.is_main():
            text = yaml.safe_dump(json.loads(json.dumps(recipe, default=str)), sort_keys=False, allow_unicode=True, width=120)
            ui.console.print(f"# the recipe of this call\n{text}", markup=False, highlight=False, end="")
            for line in (line for file in files if file is not None for line in file.told):
                ui.say(f"{line.strip()}")
            for note in notes:
                ui.say(f"note: {note}")
        return Run(api.train(loaded, quiet=ui.console.quiet))


def _lora(lora: int | Mapping[str, Any]) -> dict[str, Any]:
    return dict(lora) if isinstance(lora, Mapping) else {"rank": lora, "alpha": 2.0 * lora}


def _digest(recipe: Mapping[str, Any], overrides: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([recipe, list(overrides)], default=str, sort_keys=True).encode()).hexdigest()[:8]
