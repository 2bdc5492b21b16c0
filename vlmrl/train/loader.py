"""From the sampler's plan to encoded prompts, over all ranks, with broken media counted and replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from vlmrl.data.encode import Encoder
from vlmrl.errors import CheckpointError, DataError, MediaError, RowError
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import attention_pairs
from vlmrl.protocols import PromptSampler
from vlmrl.sampling.ledger import Ledger, LedgerRow
from vlmrl.train import dist
from vlmrl.train.prefetch import Prefetcher
from vlmrl.types import MediaHandle, PlannedPrompt, Prompt, Sample


@dataclass(kw_only=True)
class PromptLoader:
    """Rows of one stage. `bad` collects sample id -> reason and lives in `RunState`."""

    samples: Mapping[str, Sample]
    encoder: Encoder
    sampler: PromptSampler
    answer_format: str
    max_bad: float
    bad: dict[str, str]
    quarantine: Callable[[Sample, str, str], None]
    """Called with (sample, reason, message) on the rank that met the fault."""
    cost: Callable[[PlannedPrompt, Ledger], float] | None = None
    """Expected work of a planned group, the same number on every rank; None: all are equal."""
    budget: Callable[[Sequence[LedgerRow], int], list[int]] | None = None
    """Deals a step's rollouts to its prompts; None: as many for each as `next_batch` is asked for."""
    prefetcher: Prefetcher | None = None
    """Fetches the next step's media in the background; None: media are decoded when they are needed."""
    _asked: tuple[int, int] = (0, 0)
    """(prompts, rollouts) of the largest call of `next_batch` so far."""
    _in_use: list[MediaHandle] = field(default_factory=list[MediaHandle])
    """Media of the prompts taken last."""

    def next_batch(self, ledger: Ledger, *, prompts: int, rollouts: int) -> list[tuple[int, PlannedPrompt, Prompt]]:
        """Plan the next `prompts` prompts, and encode this rank's share of them.

        A sample whose media fail now (vanished or damaged since the audit) is counted with its reason and replaced by the
        sampler's next one, so that the batch keeps its size. All ranks learn of every replacement and plan alike.

        Returns:
            (place in the plan, planned, prompt), in plan order.

        Raises:
            DataError: more than the allowed share of samples failed.
            CheckpointError: media are not those that the run used before; all such of this batch are named.
        """
        if self.prefetcher is not None:
            self.prefetcher.stop()  # the media of this step come first
        out: list[tuple[int, PlannedPrompt, Prompt]] = []
        wanted = list(enumerate(self.dealt(self.sampler.plan(ledger, prompts=prompts, rollouts=rollouts), ledger)))
        numbers = {place: planned.num_generations for place, planned in wanted}
        while wanted:  # again with those that replace failed ones, until none fails
            failed: list[tuple[int, str, str]] = []
            refused: list[str] = []
            for place, planned in self.mine(wanted, ledger):
                sample = self.samples[planned.sample_id]
                try:
                    out.append((place, planned, self.encoder.encode(sample, self.answer_format)))
                except CheckpointError as error:
                    refused.append(str(error))
                except (MediaError, RowError) as error:
                    failed.append((place, sample.id, error.reason))
                    if sample.id not in self.bad:
                        self.quarantine(sample, error.reason, str(error))
            told = dist.gather((failed, refused))
            if any(of_rank for _, of_rank in told):  # raised on every rank, so that none waits for one that has gone
                raise CheckpointError("\n".join(line for _, of_rank in told for line in of_rank))
            # sorted by place: every rank gives the same places to the same replacements
            everywhere = sorted(f for of_rank, _ in told for f in of_rank)
            self.bad.update({sample_id: reason for _, sample_id, reason in everywhere})
            self._check()
            more = self.sampler.plan(ledger, prompts=len(everywhere), rollouts=rollouts) if everywhere else []
            wanted = [
                (place, replace(planned, num_generations=numbers[place])) for (place, _, _), planned in zip(everywhere, more, strict=True)
            ]
        self._asked = max(self._asked, (prompts, rollouts))
        self._in_use = [handle for _, _, prompt in out for handle in prompt.media]
        return sorted(out, key=lambda item: item[0])

    def mine(self, wanted: Sequence[tuple[int, PlannedPrompt]], ledger: Ledger) -> list[tuple[int, PlannedPrompt]]:
        """This rank's share of the planned prompts: as many as everybody's, and as much work."""
        # every rank deals all of the plan, from numbers that are the same everywhere, and takes its part
        costs = [1.0 if self.cost is None else self.cost(planned, ledger) for _, planned in wanted]
        return [item for item, rank in zip(wanted, deal(costs, dist.world()), strict=True) if rank == dist.rank()]

    def dealt(self, plan: Sequence[PlannedPrompt], ledger: Ledger) -> list[PlannedPrompt]:
        """Give each prompt of the plan its share of the rollouts."""
        if self.budget is None or not plan:
            return list(plan)
        numbers = self.budget([ledger.row(planned.sample_id) for planned in plan], sum(planned.num_generations for planned in plan))
        return [replace(planned, num_generations=number) for planned, number in zip(plan, numbers, strict=True)]

    def prefetch(self, ledger: Ledger) -> None:
        """Guess this rank's share of the next plan, and have its media decoded in the background.

        Raises:
            Exception: what the background thread met, other than a fault of a medium.
        """
        if self.prefetcher is None:
            return
        prompts, rollouts = self._asked
        guessed = self.prefetcher.guess(self.sampler, ledger, prompts=prompts, rollouts=rollouts)
        mine = [self.samples[planned.sample_id] for _, planned in self.mine(list(enumerate(guessed)), ledger)]
        self.prefetcher.start([one for sample in mine for one in self.encoder.wanted(sample)], self._in_use)

    def running(self) -> AbstractContextManager[object]:
        """Open a context in which prompts are taken; the background threads do not outlive it."""
        return nullcontext() if self.prefetcher is None else self.prefetcher

    def _check(self) -> None:
        if len(self.bad) > self.max_bad * len(self.samples):
            counts: dict[str, int] = {}
            for reason in self.bad.values():
                counts[reason] = counts.get(reason, 0) + 1
            worst = ", ".join(f"{reason}: {n}" for reason, n in sorted(counts.items()))
            raise DataError(
                f"{len(self.bad)} of {len(self.samples)} rows failed while training ({worst}), more than data.max_bad_rows {self.max_bad}; "
                f"first: {', '.join(list(self.bad)[:3])}; see quarantine.jsonl in the run directory"
            )


def cost_of(policy: Policy, prompt_tokens: Mapping[str, int]) -> Callable[[PlannedPrompt, Ledger], float]:
    """Make the estimate of a planned group's work, from its prompt's length and what the ledger knows of its answers."""
    hidden = int(policy.model.config.get_text_config().hidden_size)

    def of(planned: PlannedPrompt, ledger: Ledger) -> float:
        length = ledger.row(planned.sample_id).mean_length or 0.0
        return cost(prompt_tokens[planned.sample_id], planned.num_generations, length, hidden=hidden)

    return of


# ---- equal work on every rank --------------------------------------------------------------------------------------


def cost(prompt: int, answers: int, length: float, *, hidden: int) -> float:
    """Estimate the work of a group in token passes: tokens of its packed row, and attention pairs at what a pair costs next to a token.

    A layer's linear maps take about 24 hidden^2 operations per token and attention 4 hidden per pair, so a pair is 1 / (6 hidden) of
    a token.

    Args:
        prompt: prompt tokens.
        answers: answers of the group.
        length: expected tokens of an answer.
        hidden: size of the decoder's hidden state.
    """
    tokens = round(length)
    return prompt + answers * tokens + attention_pairs(prompt, [tokens] * answers) / (6 * hidden)


def deal(costs: Sequence[float], ranks: int) -> list[int]:
    """Deal places to ranks. Every rank gets the same number of places, or one less; the dearest first, each to the rank with the least
    work that still has room. Equal costs are dealt in turn.

    Returns:
        Rank of each place.
    """
    room = [len(costs) // ranks + (rank < len(costs) % ranks) for rank in range(ranks)]
    load = [0.0] * ranks
    out = [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min((r for r in range(ranks) if room[r]), key=lambda r: (load[r], r))
        out[place] = rank
        load[rank] += costs[place]
        room[rank] -= 1
    return out
