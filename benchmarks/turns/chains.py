"""How many tokens a training step computes with chains of turns and with trees, against a row per turn: counted, not timed.

    python -m benchmarks.turns.chains --write docs/benchmarks/chains.md

Episodes of `toy_desk` are played with proposed actions (no model), their turns become rows under several policies of history with a tiny
model's processor and screens of `--pixels` a side, and the training layouts count them: `repeat` (a padded row per turn),
`shared_prefix` (a row per turn, equal prompts once), `chains` and `trees`. All give the same log-probs. The counts depend on seeds alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT

HISTORIES = ("all", "2/4", "1")
BUDGET = 16384


def processor(folder: Path) -> Any:
    """Of a fresh tiny Qwen2.5-VL."""
    from vlmrl.extras.toy.kinds import tokenizer_corpus
    from vlmrl.extras.toy.model import build_model
    from vlmrl.policy.load import load_processor

    if not (folder / "config.json").exists():
        build_model(folder, seed=0, corpus=tokenizer_corpus("gui"))
    return load_processor(str(folder))


def played(folder: Path, tasks: int, attempts: int, turns: int) -> list[list[Any]]:
    """Groups of attempts with proposed actions."""
    from vlmrl.extras.agents.find import default_tasks, open_pool
    from vlmrl.extras.agents.play import play_many

    with open_pool("toy_desk") as pool:
        given = [task for task in default_tasks("toy_desk") if task.get("length") == 4]
        return play_many(pool, given, folder, episodes=tasks, attempts=attempts, agent="random", turns=turns, seed=0)


def rows_of(groups: Sequence[Sequence[Any]], history: str, bundle: Any, store: Any, folder: Path) -> list[Any]:
    """A row per turn; equal prompts of a group are one object, as in training."""
    from vlmrl.data.encode import Encoder
    from vlmrl.extras.agents.conversation import Conversation
    from vlmrl.extras.agents.history import History
    from vlmrl.extras.agents.prompts import chains, rows
    from vlmrl.policy.pack import Row

    conversation = Conversation(Encoder.of(bundle, store, folder, max_prompt_tokens=1 << 20))
    out: list[Row] = []
    for number, group in enumerate(groups):
        shared: dict[Any, Any] = {}
        for one in group:
            made = rows(chains(one, History.of(history), conversation, lambda ref: store.get(ref, folder).handle))
            for prompt, ids in made:
                same = shared.setdefault((prompt.ids, prompt.media), prompt)
                out.append(Row(index=len(out), group=number, prompt=same, response=ids))
    return out


def table(args: argparse.Namespace, work: Path) -> str:
    import torch

    from vlmrl.evals.score.table import markdown
    from vlmrl.extras.agents.play import SCREENS
    from vlmrl.media.store import MediaSettings, MediaStore
    from vlmrl.policy.forward import LAYOUTS, TURNS
    from vlmrl.policy.pack import PositionSpec
    from vlmrl.train.meter import packed, repeated

    bundle = processor(work / "model")
    groups = played(work, args.tasks, args.attempts, args.turns)
    pixels = args.pixels**2
    settings = MediaSettings(
        min_pixels=pixels,
        max_pixels=pixels,
        video_total_pixels=None,
        fps=2.0,
        min_frames=4,
        max_frames=32,
        cache_bytes=1 << 28,
        decoder="auto",
    )
    cells = [["history", "rows", "sampled tokens", "repeat", "shared_prefix", *TURNS, *(f"shared_prefix / {name}" for name in TURNS)]]
    spec = PositionSpec(merge_size=bundle.merge_size, tokens_per_second=None)
    with closing(MediaStore.of(settings, bundle)) as store:
        for history in args.histories:
            rows = rows_of(groups, history, bundle, store, work / SCREENS)
            shared: list[int] = []
            for layout in (LAYOUTS[name] for name in TURNS):
                parts = layout.split(rows, BUDGET)
                shared.append(sum(layout.pack([rows[n] for n in part], spec, torch.device("cpu"), pad_id=0).tokens for part in parts))
            turned, most = packed(rows, BUDGET), repeated(rows, BUDGET)
            sampled = sum(len(row.response) for row in rows)
            ratios = [f"{turned / tokens:.2f}" for tokens in shared]
            cells.append([history, *map(str, (len(rows), sampled, most, turned, *shared)), *ratios])
    return markdown(cells)


def document(args: argparse.Namespace, text: str) -> str:
    names = ("tasks", "attempts", "turns", "pixels")
    options = " ".join(f"--{name} {getattr(args, name)}" for name in names)
    lines = [
        "# Tokens of a training step with chains and trees of turns",
        "",
        f"{args.tasks} tasks of `toy_desk` with four parts, {args.attempts} attempts each of at most {args.turns} turns with proposed "
        "actions, "
        f"screens of {args.pixels} x {args.pixels} pixels, micro-batches of {BUDGET} tokens. `history`: the whole conversation (`all`), "
        "the last two screens with a new beginning every four turns (`2/4`), the last screen (`1`).",
        "",
        text,
        "All layouts give the same log-probs (`tests/unit/extras/agents/test_chains.py`, `test_trie.py`). Proposed actions are drawn from "
        "a few: attempts share more turns here than those of a policy that writes freely.",
        "",
        f"Command: `python -m benchmarks.turns.chains {options}`. Counted, so it depends on no machine.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--attempts", type=int, default=8)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--pixels", type=int, default=224, help="side of a screen as the model sees it")
    parser.add_argument("--histories", nargs="+", default=list(HISTORIES))
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = document(args, table(args, Path(folder)))
    if args.write is not None:
        from vlmrl import fs

        fs.write_text(ROOT / args.write, text)
    print(text)


if __name__ == "__main__":
    main()
