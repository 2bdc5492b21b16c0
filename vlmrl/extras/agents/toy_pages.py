"""Generated pages, which teach a tiny model to see pages: drawn by Pillow, in the size and with the words of pages of MiniWoB++.

A page has the line of its task on a yellow band, and below it buttons, text fields, coloured boxes or a figure, in places, sizes, letters
and numbers that the real pages do not have. It is named after the page of MiniWoB++ that asks the same. All answers are exact: the middle
of what is to be clicked. The environment `miniwob` takes a row as a task, and plays the real page of its name.

Where things are told apart by a word or a colour, every second row that teaches asks what is where instead, and its answer has all of them:
a click says nothing of what it left alone. After 1,000 steps neither words nor colours are told apart, with these rows or without them
(one seed).

White is what pages mostly are. A picture's white is far from 0 for the processors of Qwen-VL, so that two pages differ by little of what
a tower that nobody trained makes of them; the tiny model of this kind is built for them (`toy.model.build_model`, `paper`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vlmrl.extras.toy.kinds import PictureKind
from vlmrl.extras.toy.picture import Item
from vlmrl.extras.toy.tasks import Split
from vlmrl.rng import generator

WIDTH, HEIGHT, BAND = 160, 210, 50
"""Of a page and its line of text, in pixels."""
COLORS: Mapping[str, tuple[int, int, int]] = {
    "red": (255, 0, 0),
    "blue": (0, 0, 255),
    "olive": (128, 128, 0),
    "lime": (0, 255, 0),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (128, 128, 128),
    "purple": (128, 0, 128),
    "orange": (255, 165, 0),
    "yellow": (255, 255, 0),
    "cyan": (0, 255, 255),
    "pink": (255, 192, 203),
    "magenta": (255, 0, 255),
}
WORDS = ("ONE", "TWO", "OK", "Yes", "No", "Next", "Go")
FIGURES = {
    "rectangle": ("Rectangle", 82),
    "circle": ("Circle", 54),
    "triangle": ("Triangle", 68),
    "letter": ("Letter", 56),
    "digit": ("Number", 70),
}
"""Kind -> what its button says, and how wide that is."""
LINES = (("rectangle", "circle"), ("triangle", "letter"), ("digit",))
"""Buttons of figures, by line."""
EDGE, BLACK = (118, 118, 118), (0, 0, 0)

Box = tuple[int, int, int, int]
"""x, y, width and height in pixels."""


class Page:
    """A white page that is being drawn, with a generator of its own."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.image = Image.new("RGB", (WIDTH, HEIGHT), (255, 255, 255))
        self.draw = ImageDraw.Draw(self.image)
        self.taken: list[Box] = []
        self.named: list[tuple[str, Box]] = []
        """What is said of a button or a box, in the order in which they were drawn."""

    def between(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def some(self, names: tuple[str, ...], n: int) -> list[str]:
        """`n` of the names, in some order."""
        return [names[i] for i in self.rng.permutation(len(names))[:n]]

    def place(self, width: int, height: int) -> Box | None:
        """A box of this size that touches no other one; None where 30 tries found none."""
        for _ in range(30):
            x, y = self.between(0, WIDTH - width - 1), self.between(BAND, HEIGHT - height - 1)
            if all(x + width <= a or a + w <= x or y + height <= b or b + h <= y for a, b, w, h in self.taken):
                self.taken.append((x, y, width, height))
                return x, y, width, height
        return None

    def button(self, box: Box, word: str) -> None:
        """A grey button with its word."""
        x, y, width, height = box
        self.named.append((word.replace("\n", " "), box))
        grey = self.between(225, 245)
        self.draw.rounded_rectangle((x, y, x + width - 1, y + height - 1), 2, fill=(grey, grey, grey), outline=EDGE)
        self.draw.text((x + width / 2, y + height / 2), word, fill=BLACK, font=font(self.between(12, 14)), anchor="mm", align="center")

    def square(self, box: Box, color: str) -> None:
        """A box of one colour with a black edge."""
        x, y, width, height = box
        self.named.append((color, box))
        self.draw.rectangle((x, y, x + width - 1, y + height - 1), fill=COLORS[color], outline=BLACK)

    def task(self, text: str) -> None:
        """The band with its line of text, over all that lies there."""
        self.draw.rectangle((0, 0, WIDTH, BAND - 1), fill=COLORS["yellow"])
        cut = len(text) if len(text) < 28 else text.rfind(" ", 0, 28)
        self.draw.text((4, 3), f"{text[:cut]}\n{text[cut + 1 :]}", fill=BLACK, font=font(10))


def font(size: int) -> Any:
    """Pillow's own font."""
    return ImageFont.load_default(size)


def click_test(page: Page) -> tuple[str, Box]:
    """One button, small or large, square or not."""
    width = page.between(30, 100)
    box = page.place(width, width if page.between(0, 1) else page.between(20, 100))
    assert box is not None, "nothing else is there"
    page.button(box, ("Click\nMe!", *WORDS)[page.between(0, len(WORDS))])
    return "Click the button.", box


def click_test_2(page: Page) -> tuple[str, Box]:
    """Two or three buttons, told apart by their words."""
    for word in page.some(WORDS, page.between(2, 3)):
        box = page.place(40, 40) if page.between(0, 1) else page.place(page.between(36, 60), page.between(22, 44))
        if box is not None:
            page.button(box, word)
    word, box = page.named[0]
    return f"Click button {word}.", box


def focus_text(page: Page) -> tuple[str, Box]:
    """A text field, and sometimes a button."""
    box = page.place(page.between(80, 140), page.between(16, 24))
    assert box is not None, "nothing else is there"
    x, y, width, height = box
    page.draw.rounded_rectangle((x, y, x + width - 1, y + height - 1), 2, fill=COLORS["white"], outline=EDGE)
    other = page.place(40, page.between(20, 40)) if page.between(0, 2) == 0 else None
    if other is not None:
        page.button(other, page.some(WORDS, 1)[0])
    return "Focus into the textbox.", box


def click_color(page: Page) -> tuple[str, Box]:
    """Two to five boxes, told apart by their colours."""
    for name in page.some(tuple(COLORS), page.between(2, 5)):
        side = page.between(36, 54)
        box = page.place(side, side)
        if box is not None:
            page.square(box, name)
    name, box = page.named[0]
    return f"Click on the {name} colored box.", box


def identify_shape(page: Page) -> tuple[str, Box]:
    """A figure, and a button for each kind of figure."""
    kind = ("letter", "letter", "digit", "digit", "rectangle", "circle", "triangle")[page.between(0, 6)]
    x, y, side = page.between(60, 100), page.between(70, 100), page.between(22, 34)
    color = COLORS[page.some(tuple(name for name in COLORS if name != "white"), 1)[0]]
    left, top, right, bottom = x - side / 2, y - side / 2, x + side / 2, y + side / 2
    if kind == "rectangle":
        page.draw.rectangle((left, top, right, bottom), fill=color)
    elif kind == "circle":
        page.draw.ellipse((left, top, right, bottom), fill=color)
    elif kind == "triangle":
        page.draw.polygon([(left, bottom), (right, bottom), (x, top)], fill=color)
    else:
        letters = "abcdefghijklmnopqrstuvwxyz" if kind == "letter" else "0123456789"
        page.draw.text((x, y), letters[page.between(0, len(letters) - 1)], fill=color, font=font(page.between(20, 22)), anchor="mm")
    aside, down = page.between(-4, 4), page.between(122, 130)
    boxes: dict[str, Box] = {}
    for n, line in enumerate(LINES):
        at = WIDTH // 2 - (sum(FIGURES[name][1] for name in line) + 8 * (len(line) - 1)) // 2 + aside
        for name in line:
            word, width = FIGURES[name]
            boxes[name] = (at, down + 25 * n, width, 20)
            page.button(boxes[name], word)
            at += width + 8
    return "Click the button that best describes the figure below.", boxes[kind]


PAGES_OF: Mapping[str, Callable[[Page], tuple[str, Box]]] = {
    "click-color": click_color,
    "click-test": click_test,
    "click-test-2": click_test_2,
    "focus-text": focus_text,
    "identify-shape": identify_shape,
}
"""Page of MiniWoB++ -> what draws one like it, and says what it asks and the box of what is to be clicked."""
OFTEN = ("click-color", "click-color", "click-test", "click-test-2", "click-test-2", "focus-text", "identify-shape")
"""Pages of the splits that teach: those with more to tell apart are more often there. In the other splits each is as often there."""
TOLD_APART = ("click-color", "click-test-2")
"""Pages whose things have names."""
WHERE = "What is where?"


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The one row at these coordinates, with its page."""
    page = Page(generator(seed, "toy-pages", split, index))
    taught = split in ("pretrain", "sft")
    name = OFTEN[page.between(0, len(OFTEN) - 1)] if taught else list(PAGES_OF)[index % len(PAGES_OF)]
    asked, box = PAGES_OF[name](page)
    page.task(asked)
    if taught and name in TOLD_APART and page.between(0, 1):
        asked = WHERE
        answer = " ".join(f"{name} {json.dumps(middle(box))}" for name, box in sorted(page.named, key=lambda one: (one[1][1], one[1][0])))
        said: dict[str, Any] = {"answer_type": "exact_text", "answer": answer, "gt": {}}
    else:
        action = {"action": "click", "coordinate": middle(box)}
        said = {"answer_type": "action", "answer": json.dumps(action), "gt": {"action": action}}
    row: dict[str, Any] = {
        "id": f"toy-pages-{split}-{index:06d}",
        "task": "toy_pages",
        "data_type": "gui",
        "image": f"images/{split}/{index:06d}.png",
        "prompt": f"Task: {asked}",
        "source": "toy",
        "meta": {"environment": {"page": name}, "category": name},
    }
    return [Item(row=row | said, pixels=np.asarray(page.image))]


def middle(box: Box) -> list[int]:
    """Of a box, in thousandths of the page."""
    x, y, width, height = box
    return [round(1000 * (x + width / 2) / WIDTH), round(1000 * (y + height / 2) / HEIGHT)]


def corpus() -> Iterator[str]:
    """Text in which every word of questions and answers occurs, for the tokenizer."""
    for index in range(400):
        row = items(0, "sft", index)[0].row
        yield row["prompt"]
        yield f"<think>\n\n</think><answer>{row['answer']}</answer>"
        yield f"<answer>{row['answer']}</answer>"
    for name in COLORS:
        yield f"Click on the {name} colored box. {name} "


PAGES = PictureKind(items=items, corpus=corpus, answer_types=("action", "exact_text"), model={"family": "qwen3_vl", "paper": True})
"""`pages` of `toy.kinds.PICTURES`."""
