"""A shell game in videos, where a thought pays: a ball is under one of three coloured cups, and the cups exchange what is under them.

Second 0 shows the cup with the ball, each of the next seconds the two cups that exchange what is under them, and the rest of the ten
seconds nothing: so step k of a thought is as far from second k in every video, which is a rule that attention can learn once. Each cup
has a quarter of the picture, anew in every video. Three kinds of questions:

* `shell_end`: where is the ball at the end? The answer needs every exchange in turn. The true thought names the place of the ball at
  the start and after each exchange, in order: `green, red, blue, blue`.
* `shell_start`: where is it at the start? That can be read off the first second, so a thought is of no use.
* `shell_way`: where is it at the start and after each exchange? Only the whole way is right, so chance is no help on a long one.

`difficulty` is the number of exchanges that have to be followed: 0 for the start, else 2 to 8. `category` names the ranges: `easy` (0),
`medium` (2 and 3) and `hard` (4 and more); of ways `short` (2 and 3), `middle` and `long` (7 and 8). The rows of the split `sft` are a
careless annotator's: thought and answer agree with each other, and not always with the video. All other rows are exact.

Each exchange is of two cups at random, which moves the ball in two of three, but in the split `pretrain`, where most exchanges move the
ball. At random neither the place of the ball nor the two cups alone say anything of the next place, only both together, and a model that
learns from nothing finds no slope for hundreds of steps, how many depends on its seed. Where the ball moves more often than not, each of
the two says something. There are four games, of the same pictures (`GAMES`); the first three ask for the start and the end:

* `shell`: a base model learns all of the game, and the annotator misses a quarter of the ball's moves.
* `shell_stays`: a base model sees no exchange that leaves the ball where it is, so it cannot follow most of the hard questions, and the
  annotator notices four of ten such exchanges. Nobody but the reward of RL knows better.
* `shell_slips`: as `shell`, but the annotator follows every move, gives half of the answers at a glance, and errs where he thinks about
  the start: two of five of these thoughts name the next cup, and the answer follows. So a thought pays on hard questions and costs on
  easy ones.
* `shell_way`: every question asks for the way, and the annotator gets a step right in 35 of 100: a short way in 12 and 4 of 100, one of
  eight exchanges in 2 of 10,000.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmrl.extras.toy.picture import COLORS
from vlmrl.extras.toy.tasks import Split
from vlmrl.extras.toy.world import ToyVideo
from vlmrl.rng import generator, key, uniform

TASKS = ("shell_start", "shell_end", "shell_way")
CUPS = ("red", "green", "blue")
QUESTIONS = {
    "shell_start": "Under which cup is the ball at the start?",
    "shell_end": "Under which cup is the ball at the end?",
    "shell_way": "Under which cup is the ball at the start and after each exchange?",
}
EXCHANGES = {2: 3, 3: 3, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2}
"""Number of exchanges in a video -> its weight. Fewer than two are left out: where one word is the whole thought, a thought and none
cost the same."""
HARD = 4
"""Least number of exchanges of a hard question."""
LONG = 7
"""Least number of exchanges of a long way."""
STARTS_OF_8 = 3
"""Questions of eight that ask for the start."""
SIDE, QUARTER = 56, 28
"""Of the picture and of a quarter of it, in pixels: four visual tokens per second of a model that sees two frames a second."""
RATE = 2
"""Frames per second."""
SECONDS = 10
"""Length of every video: the start, at most eight exchanges, and at least one second of nothing."""
NOISE = 6
"""Greatest pixel noise, in levels of 0 to 255."""
BALL = (235, 235, 235)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How often the ball moves, and what the careless annotator of the split `sft` gets wrong. All numbers are chances."""

    moved: Mapping[Split, float]
    """Split -> an exchange moves the ball; in splits that are not named the cups are drawn at random, and it is 2/3."""
    missed: float = 0.0
    """A move of the ball is not noticed."""
    imagined: float = 0.0
    """Where the ball stays, it is seen to move."""
    glances: float = 0.0
    """A row of `sft` has no thought, and the right answer."""
    slips: float = 0.0
    """A thought of `sft` about the start names another cup, and so does the answer."""
    way: bool = False
    """Every question asks for the way."""


GAMES: Mapping[str, Rules] = {
    "shell": Rules(moved={"pretrain": 5 / 6}, missed=0.25),
    "shell_stays": Rules(moved={"pretrain": 1.0, "validation": 1.0}, imagined=0.6),
    "shell_slips": Rules(moved={"pretrain": 5 / 6}, glances=0.5, slips=0.4),
    "shell_way": Rules(moved={"pretrain": 5 / 6}, missed=0.65, imagined=0.65, way=True),
}
"""Kind of world -> its rules."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """What one video shows, and what is asked."""

    split: Split
    index: int
    task: str
    ball: int
    """The cup with the ball at the start."""
    pairs: tuple[tuple[int, int], ...]
    """The two cups of each exchange."""
    quarters: tuple[int, ...]
    """Cup -> its quarter of the picture: top left, top right, bottom left, bottom right."""

    @property
    def id(self) -> str:
        return f"toy-shell-{self.split}-{self.index:06d}"

    @property
    def places(self) -> tuple[int, ...]:
        """The cup that the ball is under, at the start and after each exchange."""
        return follow(self.ball, self.pairs)

    @property
    def difficulty(self) -> int:
        """Exchanges that have to be followed."""
        return 0 if self.task == "shell_start" else len(self.pairs)


def follow(
    ball: int, pairs: tuple[tuple[int, int], ...], missed: frozenset[int] = frozenset(), imagined: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """The ball's cup at the start and after each exchange, as it is seen by somebody who makes mistakes.

    Args:
        missed: places of exchanges (from 0) at which a move of the ball is not noticed.
        imagined: places at which a ball that stays is seen to move, to the next of the cups.
    """
    out = [ball]
    for i, pair in enumerate(pairs):
        now = out[-1]
        if now in pair:
            out.append(now if i in missed else sum(pair) - now)
        else:
            out.append((now + 1) % len(CUPS) if i in imagined else now)
    return tuple(out)


def make_game(seed: int, split: Split, index: int, rules: Rules = GAMES["shell"]) -> Game:
    """The game at these coordinates."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-shell", split, index, *names) % n

    levels = [n for n, weight in EXCHANGES.items() for _ in range(weight)]
    ball = draw(len(CUPS), "ball")
    pairs: list[tuple[int, int]] = []
    for i in range(levels[draw(len(levels), "exchanges")]):
        stays = draw(len(CUPS), "pair", i)  # the cup that has no part in it
        if split in rules.moved:
            now = follow(ball, tuple(pairs))[-1]
            moves = uniform(seed, "toy-shell", split, index, "moved", i) < rules.moved[split]
            stays = (now + 1 + draw(2, "partner", i)) % len(CUPS) if moves else now
        first, second = (cup for cup in range(len(CUPS)) if cup != stays)
        pairs.append((first, second))
    quarters = [0, 1, 2, 3]
    return Game(
        split=split,
        index=index,
        task="shell_way" if rules.way else TASKS[draw(8, "task") >= STARTS_OF_8],
        ball=ball,
        pairs=tuple(pairs),
        quarters=tuple(quarters.pop(draw(len(quarters), "quarter", cup)) for cup in range(len(CUPS))),
    )


def _chance(seed: int, game: Game, name: str, i: int, chance: float) -> bool:
    return uniform(seed, "toy-shell", game.split, game.index, name, i) < chance


def careless(seed: int, game: Game, rules: Rules) -> tuple[int, ...]:
    """The places that a careless annotator of this game sees, or says where he is asked for the start alone."""

    def places(name: str, chance: float) -> frozenset[int]:
        return frozenset(i for i in range(len(game.pairs)) if _chance(seed, game, name, i, chance))

    if game.task == "shell_start" and _chance(seed, game, "slip", 0, rules.slips):
        return ((game.ball + 1) % len(CUPS),)
    return follow(game.ball, game.pairs, places("missed", rules.missed), places("imagined", rules.imagined))


def way(places: tuple[int, ...]) -> str:
    return ", ".join(CUPS[cup] for cup in places)


def thought(task: str, places: tuple[int, ...]) -> str:
    """What is written between the tags of a thought."""
    return way(places) if task == "shell_end" else f"The ball is under the {CUPS[places[0]]} cup."


def category(task: str, difficulty: int) -> str:
    if task == "shell_way":
        return "long" if difficulty >= LONG else "middle" if difficulty >= HARD else "short"
    return "easy" if difficulty == 0 else "hard" if difficulty >= HARD else "medium"


def make_row(seed: int, game: Game, rules: Rules = GAMES["shell"]) -> dict[str, Any]:
    """The data row of a game."""
    glances = game.split == "sft" and _chance(seed, game, "glance", 0, rules.glances)
    places = careless(seed, game, rules) if game.split == "sft" and not glances else game.places
    answers = {"shell_start": CUPS[places[0]], "shell_end": CUPS[places[-1]], "shell_way": way(places)}
    return {
        "id": game.id,
        "task": game.task,
        "answer_type": "exact_text",
        "data_type": "video",
        "video": f"videos/{game.split}/{game.index:06d}.mp4",
        "prompt": QUESTIONS[game.task],
        "answer": answers[game.task],
        **({} if glances or rules.way else {"thought": thought(game.task, places)}),
        "difficulty": str(game.difficulty),
        "source": "toy",
        "meta": {
            "category": category(game.task, game.difficulty),
            **({} if rules.way else {"choices": list(CUPS)}),
            "labels": "careless" if game.split == "sft" else "exact",
            "exchanges": [[CUPS[a], CUPS[b]] for a, b in game.pairs],
            "steps": [{"time": second, "text": CUPS[cup]} for second, cup in enumerate(game.places)],
        },
    }


def render(game: Game, seed: int) -> Iterator[np.ndarray]:
    """The frames of a game, uint8 RGB [56, 56, 3], at `i / RATE` seconds."""
    rng = generator(seed, "toy-shell-pixels", game.split, game.index)
    level = int(rng.integers(15, 60))
    for second in range(SECONDS):
        shown = (game.ball,) if second == 0 else game.pairs[second - 1] if second <= len(game.pairs) else ()
        for _ in range(RATE):
            frame = rng.integers(-NOISE, NOISE + 1, size=(SIDE, SIDE, 3), dtype=np.int16) + np.int16(level)
            for cup in shown:
                y, x = (QUARTER * place for place in divmod(game.quarters[cup], 2))
                bottom = y + (17 if second == 0 else 25)
                frame[y + 3 : bottom, x + 4 : x + 24] += np.array(COLORS[CUPS[cup]], dtype=np.int16) - np.int16(level)
                if second == 0:
                    frame[bottom : bottom + 8, x + 10 : x + 18] += np.array(BALL, dtype=np.int16) - np.int16(level)
            yield np.clip(frame, 0, 255).astype(np.uint8)


def clip(seed: int, split: Split, index: int, *, rules: Rules = GAMES["shell"]) -> ToyVideo:
    """The video and the row at these coordinates."""
    game = make_game(seed, split, index, rules)
    return ToyVideo(row=make_row(seed, game, rules), frames=lambda: render(game, seed), rate=RATE, size=(SIDE, SIDE))


def corpus(kind: str) -> Iterator[str]:
    """Text in which every word of questions, thoughts and answers occurs, for the tokenizer. All games but `shell_way` share one."""
    rules = GAMES["shell_way" if GAMES[kind].way else "shell"]
    for index in range(256):
        row = make_row(0, make_game(0, "sft", index, rules), rules)
        yield row["prompt"]
        if "thought" in row:
            yield f"<think>{row['thought']}</think><answer>{row['answer']}</answer>"
        yield f"<think>\n\n</think><answer>{row['answer']}</answer>"
