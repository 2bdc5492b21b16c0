"""How often intervals and tests of evaluation are right: methods over seeds under no effect, and coverage of intervals near 0 and 1.

    python -m benchmarks.parts.intervals --write docs/benchmarks/intervals.md

A run of a method has an accuracy of its own, drawn anew for each seed; its answers to one question are alike over runs as far as the
question is easy or hard. Two methods that are the same draw from one law, so every significant difference between them is a false one.
Coverage of a share is summed over all counts, not simulated.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import how_measured, percentile_interval

COMPARISONS = 2000
QUESTIONS = 150
Law = tuple[float, float]
"""Mean of the accuracy of a run, and its deviation over seeds."""
MIDDLE: Law = (0.501, 0.191)
"""Of 0.293, 0.833, 0.540, 0.560, 0.400 and 0.380: six seeds of `toy_video` with 15 steps of SFT and 6 of RL, on 150 questions."""
EDGE: Law = (0.902, 0.074)
"""Of 0.867, 0.987 and 0.853: three seeds of the same recipe, of other runs."""
ALIKE = 0.5
"""Correlation, over runs, of what decides an answer."""

Interval = Callable[[int, int], tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Found:
    """False alarms of one way to compare."""

    name: str
    alarms: int
    of: int

    def row(self) -> list[str]:
        low, high = expected(self.of)
        return [self.name, f"{self.alarms} of {self.of}", f"{self.alarms / self.of:.1%}", "yes" if low <= self.alarms <= high else "no"]


def expected(comparisons: int) -> tuple[int, int]:
    """95% interval of the number of false alarms of a test at 5%."""
    from scipy.stats import binom

    return int(binom.ppf(0.025, comparisons, 0.05)), int(binom.ppf(0.975, comparisons, 0.05))


def answers(generator: np.random.Generator, runs: int, law: Law, questions: int = QUESTIONS) -> np.ndarray:
    """Right answers of runs of one method [runs, questions], over fresh questions and seeds."""
    from scipy.stats import norm

    mean, spread = law
    if spread:
        size = mean * (1 - mean) / spread**2 - 1
        accuracy = generator.beta(mean * size, (1 - mean) * size, runs)
    else:
        accuracy = np.full(runs, mean)
    shared = generator.normal(size=questions)
    own = generator.normal(size=(runs, questions))
    latent = math.sqrt(ALIKE) * shared + math.sqrt(1 - ALIKE) * own
    return (norm.cdf(latent) < accuracy[:, None]).astype(float)


def false_alarms(comparisons: int, seeds: Sequence[int], law: Law, seed: int = 0) -> list[Found]:
    """Compare a method with itself again and again, by one run of each side and by several."""
    from vlmrl.metrics.intervals import ALPHA, mcnemar, paired_seeds, tango, unpaired_seeds

    names = ["one run each, percentile bootstrap over questions (until now)", "one run each, Tango and McNemar"]
    names += [f"{n} runs each, {way}" for n in seeds for way in ("paired t", "Welch")]
    alarms = dict.fromkeys(names, 0)
    generator = np.random.Generator(np.random.Philox(seed))
    for _ in range(comparisons):
        runs = answers(generator, 2 * max(seeds), law)
        a, b = runs[0], runs[max(seeds)]
        p = mcnemar(list(a == 1), list(b == 1))
        gains, losses = int((b > a).sum()), int((a > b).sum())
        low, high = resampled_change(gains, losses, len(a))
        alarms[names[0]] += (low > 0 or high < 0) and p < ALPHA
        low, high = tango(gains, losses, len(a))
        alarms[names[1]] += (low > 0 or high < 0) and p < ALPHA
        means = runs.mean(1)
        for n in seeds:
            first, second = means[:n].tolist(), means[max(seeds) : max(seeds) + n].tolist()
            for way, test in (("paired t", paired_seeds), ("Welch", unpaired_seeds)):
                alarms[f"{n} runs each, {way}"] += test(first, second, 1 / QUESTIONS).p < ALPHA
    return [Found(name=name, alarms=int(count), of=comparisons) for name, count in alarms.items()]


def clopper_pearson(successes: int, trials: int) -> tuple[float, float]:
    """The exact interval of a share, to compare with."""
    from scipy.stats import binomtest

    found = binomtest(successes, trials).proportion_ci(method="exact")
    return float(found.low), float(found.high)


def percentiles(successes: int, trials: int) -> tuple[float, float]:
    """The percentile bootstrap of a share without drawing: a resample has Binomial(n, k / n) successes."""
    from scipy.stats import binom

    low, high = binom.ppf([0.025, 0.975], trials, successes / trials) / trials
    return float(low), float(high)


def coverage(interval: Interval, trials: int, share: float) -> float:
    """Chance that the interval holds the true share: the sum over all counts of successes."""
    from scipy.stats import binom

    chances = binom.pmf(np.arange(trials + 1), trials, share)
    found = [interval(k, trials) if chance > 1e-12 else (2.0, 2.0) for k, chance in enumerate(chances)]
    return float(sum(chance for chance, (low, high) in zip(chances, found, strict=True) if low <= share <= high))


def coverage_of_change(interval: Callable[[int, int, int], tuple[float, float]], pairs: int, gain: float, loss: float) -> float:
    """Chance that the interval of a paired difference holds the true one: the sum over all numbers of gains and losses."""
    from scipy.stats import multinomial

    law, total = multinomial(pairs, [gain, loss, 1 - gain - loss]), 0.0
    for gains in range(pairs + 1):
        for losses in range(pairs + 1 - gains):
            chance = float(law.pmf([gains, losses, pairs - gains - losses]))
            if chance > 1e-9:
                low, high = interval(gains, losses, pairs)
                total += chance if low - 1e-12 <= gain - loss <= high + 1e-12 else 0.0
    return total


def resampled_change(gains: int, losses: int, pairs: int) -> tuple[float, float]:
    """The percentile bootstrap of a paired difference of answers that are right or wrong."""
    drawn = np.random.Generator(np.random.Philox(gains * 1000 + losses)).multinomial(
        pairs, [gains / pairs, losses / pairs, 1 - (gains + losses) / pairs], 2000
    )
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / pairs, [0.025, 0.975])
    return float(low), float(high)


def coverage_of_overlaps(clusters: int, runs: int, seed: int = 0) -> tuple[float, float]:
    """Coverage of BCa and of percentiles for overlaps of which most are 0: four questions to a medium, one medium in five with any.

    Returns:
        (BCa, percentiles); the mean over the law is 0.2 * 0.5 = 0.1.
    """
    from vlmrl.metrics.intervals import mean_interval

    generator = np.random.Generator(np.random.Philox(seed))
    names = np.repeat(np.arange(clusters), 4).tolist()
    held = np.zeros(2)
    for _ in range(runs):
        seen = np.repeat(generator.random(clusters) < 0.2, 4)
        values = np.where(seen, generator.random(4 * clusters), 0.0)
        found = mean_interval(values.tolist(), generator, names)
        held[0] += found.low is not None and found.high is not None and found.low <= 0.1 <= found.high
        low, high = percentile_interval(values.reshape(clusters, 4).mean(1), generator)
        held[1] += low <= 0.1 <= high
    return float(held[0] / runs), float(held[1] / runs)


def document(comparisons: int, runs: int, command: str) -> str:
    """The page."""

    from vlmrl.evals.score.table import markdown
    from vlmrl.metrics.intervals import tango, wilson

    low, high = expected(comparisons)
    header = ["compared by", "significant", "share", f"in {low} to {high}"]
    middle, edge, none = (false_alarms(comparisons, (3, 5), law) for law in (MIDDLE, EDGE, (EDGE[0], 0.0)))
    shares = [["n", "true share", "Wilson", "Clopper-Pearson", "percentile bootstrap"]]
    for n in (12, 50, 150, 600):
        for share in (0.9, 0.98, 0.99, 0.995):
            shares.append([str(n), f"{share:g}", *(f"{coverage(of, n, share):.3f}" for of in (wilson, clopper_pearson, percentiles))])
    changes = [["n", "gains", "losses", "Tango", "percentile bootstrap"]]
    for n in (20, 50, 150):
        for gain, loss in ((0.005, 0.005), (0.02, 0.02), (0.05, 0.0), (0.1, 0.05)):
            found = [coverage_of_change(of, n, gain, loss) for of in (tango, resampled_change)]
            changes.append([str(n), f"{gain:g}", f"{loss:g}", *(f"{value:.3f}" for value in found)])
    overlaps = [["media", "BCa", "percentile bootstrap"]]
    for clusters in (10, 20, 50, 150):
        overlaps.append([str(clusters), *(f"{value:.3f}" for value in coverage_of_overlaps(clusters, runs))])
    return "\n".join(
        [
            "# How often intervals and tests are right",
            "",
            f"## A method against itself, {comparisons} times",
            "",
            f"{QUESTIONS} questions. At 5% between {low} and {high} of {comparisons} are significant in 95 of 100 such tables. Accuracies "
            f"of runs have mean {MIDDLE[0]:g} and deviation {MIDDLE[1]:g} over seeds, as six seeds of one recipe had:",
            "",
            markdown([header, *(x.row() for x in middle)]),
            f"Near the edge, with mean {EDGE[0]:g} and deviation {EDGE[1]:g} (three seeds), the law is skew and t finds less than 5%:",
            "",
            markdown([header, *(x.row() for x in edge)]),
            "The same without any spread over seeds, where questions are all the noise there is:",
            "",
            markdown([header, *(x.row() for x in none)]),
            "## Coverage of the 95% interval of a share",
            "",
            markdown(shares),
            "## Coverage of the 95% interval of a paired difference of answers that are right or wrong",
            "",
            markdown(changes),
            f"## Coverage of the 95% interval of a mean overlap, four questions to a medium, {runs} evaluations each",
            "",
            "One medium in five has overlaps, uniform from 0 to 1; at all others they are 0.",
            "",
            markdown(overlaps),
            *how_measured(
                command,
                "shares and paired differences are summed over all counts; the bootstrap of a paired difference has 2000 resamples a count",
                libraries=("numpy", "scipy"),
            ),
        ]
    )


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    parser.add_argument("--evaluations", type=int, default=200, help="for the coverage of overlaps")
    parser.add_argument("--write", type=Path, default=Path("docs/benchmarks/intervals.md"))
    args = parser.parse_args()
    command = "python -m benchmarks.parts.intervals"
    args.write.write_text(document(args.comparisons, args.evaluations, command), encoding="utf-8")
    print(args.write.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
