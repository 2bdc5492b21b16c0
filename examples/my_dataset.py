"""Write a data set of your own: pictures with dots, and the question how many there are.

    python examples/my_dataset.py OUT

A row is one JSON object per line (docs/data.md). Media paths are relative to the folder of the rows. `vlmrl check` reads every row, opens
every picture and scores every gold answer before anything is trained:

    vlmrl check examples/my_recipe.yaml data.root=OUT model.path=MODEL
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

SIZES = {"train": 48, "test": 16}


def draw(dots: int, seed: int) -> Image.Image:
    """A picture of 112 x 84 pixels with so many dots, each in a cell of its own."""
    rng = random.Random(seed)
    picture = Image.new("RGB", (112, 84), "white")
    pen = ImageDraw.Draw(picture)
    for cell in rng.sample(range(12), dots):
        x, y = 28 * (cell % 4) + 14, 28 * (cell // 4) + 14
        pen.ellipse((x - 8, y - 8, x + 8, y + 8), fill=rng.choice(["red", "blue", "green"]))
    return picture


def write(out: Path) -> None:
    """`<out>/<split>.jsonl` and `<out>/pictures/`."""
    (out / "pictures").mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        rows = []
        for n in range(size):
            name, dots = f"{split}-{n:03d}", n % 10 + 1
            draw(dots, seed=1000 * (split == "train") + n).save(out / "pictures" / f"{name}.png")
            rows.append(
                {
                    "id": name,
                    "task": "counting",
                    "answer_type": "number",
                    "image": f"pictures/{name}.png",
                    "prompt": "How many dots are there?",
                    "answer": str(dots),
                    "gt": {"number": dots},
                }
            )
        (out / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
