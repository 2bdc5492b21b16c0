"""The page of the pixel faults, from the verdicts that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.evals.score.table import markdown
from vlmrl.extras.pixels.faults import FAULTS
from vlmrl.extras.pixels.judge import APART, CLOSE

HEAD = f"""# Pixel faults

Twelve ways in which a trainer rewards one picture and trains on another, each from a public thread. A program feeds each to a trainer,
with a tiny Qwen2.5-VL of random weights on a CPU, and measures what became of it:

* **noticed**: an error or a warning whose text names it; the text stands in the cell
* **stopped**: an error that does not name it
* **prevented**: the log-probs that entered the loss are those of an independent reference under the right pixels
* **in silence**: they are not, or a row never came to the loss, and nothing was said
* **does not apply**: the trainer lacks the path; the reason stands in the cell

The reference is transformers' own processor and model, one answer at a time, float32: features in the placeholders of the prompt and
nowhere else, transformers' own positions. Log-probs and normalised pixels count as equal within {CLOSE:g}. Where the tower runs in the
program's process, the patches that it is given in the rollout and in training are held against the right ones too. Before the faults each
trainer is given a job without any: it has to come out right, and the same answers with black pixels have to differ by {APART:g} nats or
more. Messages that it gives then do not count as noticing.

Pixels are taken out of the batch by hand for `dropped` and `one_rank`, which no row causes: in vlmrl from the minibatch that
`optimizer_step` is given, in TRL from what `_generate_and_score_completions` returns. Everything else is fed as rows. vlmrl generates with
its own engine and TRL with transformers, in the trainer's process; vLLM is not part of this, and threads about it are cited for the fault,
not for the verdict.
"""

TAIL = """## Another trainer

An adapter is a class with `name` and three functions (`vlmrl/extras/pixels/job.py`, `Trainer`), 100 lines for TRL
(`benchmarks/pixel_faults/peer_trl.py`):

* `version()` names the version that is asked
* `lacks(fault)` gives the reason why a fault does not apply, or None
* `train(job)` trains the rows of a job as the trainer's documentation says, and returns an `Answer` for each answer that came to the
  loss: ids of its prompt and of itself, the log-probs that entered the loss, the step, from the second step on the weights, and if the
  rollout reports log-probs, those. It takes the pixels out of the batch of the ranks in `job.lost`, between rollout and training. What the
  trainer raises rises, and `warnings` and `logging` are listened to.

```bash
python -m benchmarks.pixel_faults --trainers my_package.my_adapter:Mine --write runs/mine
```

`vlmrl tools pixels` asks an installation of vlmrl, without this repository.
"""


def cell(verdict: Mapping[str, str]) -> str:
    """Write a verdict with its numbers or its message."""
    return f"**{verdict['verdict']}**: {verdict['how']}"


def thread(name: str) -> str:
    """Link a thread `owner/repository#number`, which GitHub forwards to the pull request where it is one."""
    place, _, number = name.partition("#")
    return f"[{name}](https://github.com/{place}/issues/{number})"


def lines(result: Mapping[str, Any]) -> list[str]:
    """Write the page of a result as `python -m benchmarks.pixel_faults` makes it."""
    trainers = result["trainers"]
    by_name = [{one["fault"]: one for one in trainer["verdicts"]} for trainer in trainers]
    table = [["fault", *(f"{trainer['name']} {trainer['version']}" for trainer in trainers)]]
    table += [[f"{fault.title} (`{fault.key}`)", *(cell(found[fault.key]) for found in by_name)] for fault in FAULTS]
    fed = [["fault", "fed", "compared with", "seen in"]]
    fed += [[f"`{fault.key}`", fault.given, fault.right, ", ".join(map(thread, fault.threads))] for fault in FAULTS]
    place = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    shown = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    return [
        HEAD,
        "## Verdicts\n",
        markdown(table),
        "\n## What was fed, and what it was compared with\n",
        markdown(fed),
        "",
        TAIL,
        "## How it was measured\n",
        f"* command: `python -m benchmarks.pixel_faults --trainers {' '.join(trainer['name'] for trainer in trainers)}`",
        f"* machine: {place}",
        f"* versions: {shown}; this repository at {result['revision']}",
        "",
    ]
