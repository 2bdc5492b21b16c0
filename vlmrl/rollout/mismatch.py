"""How far the sampler's log-probs are from the trainer's, by what stands in front of the answer.

An engine that sees other pixels, other positions or older features than the trainer is right about text and wrong behind media, and a mean
over everything hides it in the rows that are right. So the gap is kept apart by place: rows whose prompt holds text only, one image,
several images, one video, several videos, or images and videos.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from vlmrl.errors import EngineError
from vlmrl.policy.pack import to_device
from vlmrl.types import Prompt

PLACES = ("text", "image", "images", "video", "videos", "mixed")
PREFIX = "sampling/"
MOST = 20.0
"""Nats that a token's gap counts for at most where it stands in an exponent, as in the losses: one token cannot make a mean infinite."""
TURNS = 16
"""Turns that are reported apart; later ones together."""


def place_of(prompt: Prompt) -> str:
    """Say which media a prompt holds, as one of `PLACES`."""
    kinds = [handle.kind for handle in prompt.media]
    if not kinds:
        return "text"
    if len(set(kinds)) > 1:
        return "mixed"
    return kinds[0] if len(kinds) == 1 else f"{kinds[0]}s"


def turn_of(turn: int) -> str:
    """Name a turn as it is reported: by its number, and with one name for the last of long episodes."""
    return str(turn) if turn < TURNS else f"{TURNS}_on"


def gaps(
    logp_BT: torch.Tensor, sampled_BT: torch.Tensor, prompts: Sequence[Prompt], turns: Sequence[int | None] = ()
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Sum over the sampled tokens of each place how far the trainer's log-probs are from the sampler's. `sampled_BT` is not finite where
    nothing was sampled. All sums are on the device of the log-probs: the host has waited for none.

    `turns`: of the rows that are turns of episodes; the first of the metrics is then given for each turn as well,
    `sampling/turn_gap/<turn>`. A sampler that keeps what it has read is right about first turns whatever it does with what it keeps.

    Returns:
        (sum, count) of `sampling/logp_gap/<place>`, |trainer - sampler| in nats, and `sampling/ratio/<place>`, trainer's probability /
        sampler's, within e^+-20; a count may be 0.
    """
    known_BT = sampled_BT.isfinite()
    gap_BT = torch.where(known_BT, logp_BT.detach() - sampled_BT, torch.zeros_like(sampled_BT))
    rows: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows.setdefault(place_of(prompt), []).append(row)
    out: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for place, own in rows.items():
        index = to_device(torch.tensor(own), gap_BT.device)  # and no mask, whose size the host would wait for
        gap, known = gap_BT[index], known_BT[index]
        count = known.sum()
        out[f"{PREFIX}logp_gap/{place}"] = gap.abs().sum(), count
        out[f"{PREFIX}ratio/{place}"] = torch.where(known, gap.clamp(-MOST, MOST).exp(), torch.zeros_like(gap)).sum(), count
    by_turn: dict[str, list[int]] = {}
    for row, turn in enumerate(turns):
        if turn is not None:
            by_turn.setdefault(turn_of(turn), []).append(row)
    for name, own in by_turn.items():
        index = to_device(torch.tensor(own), gap_BT.device)
        out[f"{PREFIX}turn_gap/{name}"] = gap_BT[index].abs().sum(), known_BT[index].sum()
    return out


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Mean gaps in nats at which to warn and to stop; None: never."""

    warn: float | None = None
    stop: float | None = None

    def check(self, metrics: Mapping[str, float], where: str) -> list[str]:
        """Warn about a step's gaps by place.

        Returns:
            The warnings.

        Raises:
            EngineError: one is above `stop`, or not a number.
        """
        found = {name.rsplit("/", 1)[-1]: value for name, value in metrics.items() if name.startswith(f"{PREFIX}logp_gap/")}
        # `not <=`: a gap that is NaN is above every bound
        above = {place: value for place, value in found.items() if self.stop is not None and not value <= self.stop}
        if above:
            raise EngineError(
                f"{where}: the sampler's log-probs are not the trainer's: mean gap {_told(above)}, at most {self.stop:g} is allowed "
                f"(rollout.max_gap.stop); {_meaning(found)}"
            )
        return [
            f"the sampler's log-probs differ from the trainer's by {value:.3g} on average behind {_WORDS[place]} (rollout.max_gap.warn: "
            f"{self.warn:g}); {_meaning(found)}"
            for place, value in found.items()
            if self.warn is not None and not value <= self.warn
        ]


_WORDS = {
    "text": "text alone",
    "image": "one image",
    "images": "several images",
    "video": "a video",
    "videos": "several videos",
    "mixed": "images and videos",
}


def _told(found: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.3g} behind {_WORDS[place]}" for place, value in sorted(found.items()))


def _meaning(found: Mapping[str, float]) -> str:
    """Say what a gap in these places and not in others speaks for."""
    media = [value for place, value in found.items() if place != "text"]
    if "text" in found and media and min(media) > 10 * found["text"]:
        return f"text alone is at {found['text']:.3g}, so look at pixels, positions and features of media first"
    return "weights, kernels or the sampling settings of the two sides differ (docs/rollout.md)"
