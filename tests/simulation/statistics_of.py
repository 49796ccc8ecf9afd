"""The few statistics that the tests of the simulation need, without another dependency."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist, fmean, pvariance


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(X > statistic) for the chi-square distribution (Wilson and Hilferty 1931: good to some percent of p)."""
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5
    return 1 - NormalDist().cdf(z)


def uniform_tail(counts: Sequence[int]) -> float:
    """The p value of counts that should be equal (Pearson's chi-square)."""
    expected = fmean(counts)
    return chi_square_tail(sum((count - expected) ** 2 / expected for count in counts), len(counts) - 1)


def holm_rejects(tails: Sequence[float], level: float = 0.01) -> int:
    """How many hypotheses are rejected at a level for all of them together (Holm 1979)."""
    rejected = 0
    for tested, tail in enumerate(sorted(tails)):
        if tail > level / (len(tails) - tested):
            break
        rejected += 1
    return rejected


def variation(counts: Sequence[int]) -> float:
    """The coefficient of variation: standard deviation / mean."""
    return float(pvariance(counts) ** 0.5 / fmean(counts))


def dispersion(counts: Sequence[int]) -> float:
    """Variance / mean: 1 for independent draws."""
    return float(pvariance(counts) / fmean(counts))
