"""An exponential moving average of the weights, and the likelihood of answers under it: the reference of GRPO-CARE. arXiv:2506.16141.

Every `every` optimizer steps: average <- decay * average + (1 - decay) * weights, with 10 and 0.995. From 0 towards constant weights w the
average is w * (1 - decay^n) after n updates. The likelihood of an answer given its thought is the geometric mean over the answer's
tokens under these weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.errors import CheckpointError

PREFIX = "average/"
"""Of the tensors' names in a checkpoint."""


def blend(average: Tensor, weights: Tensor, decay: float) -> Tensor:
    """Compute decay * average + (1 - decay) * weights.

    Returns:
        A tensor in the type of `average`, on its device, without gradient of the weights.
    """
    return average * decay + weights.detach().to(average.device, average.dtype) * (1 - decay)


class AveragedWeights:
    """The average of some named weights. Its tensors may be the parameters of a reference model, which then always holds the average.

    `steps` is its only other memory. Load order: make it, then `load_state_dict`.
    """

    def __init__(
        self,
        average: Mapping[str, Tensor],
        *,
        every: int = 10,
        decay: float = 0.995,
        put: Callable[[Tensor, Tensor], object] = lambda value, average: average.copy_(value),
    ):
        """`average` is changed in place by `step`, and has the values to start from. `put` copies a saved tensor into one of it.

        Raises:
            ValueError: a number is out of range, or a tensor is of less than 32 bits: 0.5% of a difference would be rounded away.
        """
        if every < 1 or not 0 <= decay < 1:
            raise ValueError(f"averaged weights: needs every {every} >= 1 and 0 <= decay {decay} < 1")
        short = [name for name, t in average.items() if not t.is_floating_point() or t.element_size() < 4]
        if short:
            raise ValueError(f"averaged weights: '{short[0]}' is {average[short[0]].dtype}; an average needs float32")
        self._average = dict(average)
        self.every, self.decay, self._put = every, decay, put
        self.steps = 0
        """Optimizer steps seen."""

    @torch.no_grad()
    def step(self, weights: Mapping[str, Tensor]) -> bool:
        """Count an optimizer step, and update the average if it is its turn.

        Returns:
            Whether it was.

        Raises:
            ValueError: names or shapes differ from the average's; nothing is changed then.
        """
        _same("weights", weights, self._average)
        self.steps += 1
        if self.steps % self.every:
            return False
        for name, average in self._average.items():
            average.copy_(blend(average, weights[name], self.decay))  # in place: it may be a parameter of the reference
        return True

    def tensors(self) -> dict[str, Tensor]:
        """Collect the live tensors under their names in a checkpoint."""
        return {PREFIX + name: t.detach() for name, t in self._average.items()}

    def state_dict(self) -> dict[str, Any]:
        """Collect all but the tensors, as JSON values."""
        return {"steps": self.steps, "every": self.every, "decay": self.decay}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` and `tensors` gave; on any difference nothing is changed.

        Raises:
            CheckpointError: other keys, numbers, names, shapes or types.
        """
        if set(state) != {"steps", "every", "decay"}:
            raise CheckpointError(f"averaged weights: state has keys {sorted(state)}, needs decay, every, steps; it is of another version")
        if (state["every"], state["decay"]) != (self.every, self.decay):
            raise CheckpointError(
                f"averaged weights: saved with every {state['every']} and decay {state['decay']}, "
                f"this run has every {self.every} and decay {self.decay}; keep the recipe, or start a new run"
            )
        try:
            _same("saved tensors", tensors, self.tensors())
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        for name, average in self._average.items():
            self._put(tensors[PREFIX + name], average)
        self.steps = int(state["steps"])


def _same(what: str, given: Mapping[str, Tensor], average: Mapping[str, Tensor]) -> None:
    missing, unknown = sorted(set(average) - set(given)), sorted(set(given) - set(average))
    shapes = sorted(name for name in set(given) & set(average) if given[name].shape != average[name].shape)
    if missing or unknown or shapes:
        raise ValueError(f"averaged weights: {what} do not fit: missing {missing[:3]}, unknown {unknown[:3]}, other shapes {shapes[:3]}")


def answer_likelihood(logp_NT: Tensor, answer_NT: Tensor) -> Tensor:
    """Compute exp(mean of `logp_NT` over the answer's tokens): the need `consistency_N`.

    Args:
        logp_NT: log-probs of the response tokens under the averaged weights; anything outside the mask.
        answer_NT: bool, the answer's tokens (`rollout.answer_span.answer_mask`).

    Returns:
        [N] float64; NaN for a row without an answer.
    """
    count_N = answer_NT.sum(dim=1)
    # [N, T] -> [N]; `where`, since outside the mask log-probs may be anything, NaN too
    total_N = torch.where(answer_NT, logp_NT.double(), torch.zeros_like(logp_NT, dtype=torch.float64)).sum(dim=1)
    likelihood_N = (total_N / count_N.clamp(min=1)).exp()
    return torch.where(count_N > 0, likelihood_N, torch.full_like(likelihood_N, float("nan")))
