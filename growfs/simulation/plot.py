"""Draws the results of `growfs plan`. matplotlib comes with the extra `report`, and is imported only to draw."""

from __future__ import annotations

from pathlib import Path

from growfs.errors import GrowfsError, UsageError, pip_install
from growfs.simulation.plan import TITLES, PolicyResult

DAYS_FROM_S = 3 * 86_400


def draw(found: list[PolicyResult], path: Path) -> None:
    """Write an image of coverage, and of opens per fetch, over time. Raises GrowfsError."""
    try:
        import matplotlib
    except ImportError:
        raise GrowfsError(f"plan: --draw needs matplotlib: {pip_install('growfs[report]')}") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (seen, repeats) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 7), layout="constrained")
    longest_s = max(row.points[-1].s for row in found)
    unit, unit_s = ("days", 86_400) if longest_s > DAYS_FROM_S else ("hours", 3_600)
    for row in found:
        times = [point.s / unit_s for point in row.points]
        seen.plot(times, [100 * point.seen for point in row.points], label=TITLES[row.policy])
        repeats.plot(times, [point.opens / max(1, point.fetches) for point in row.points], label=TITLES[row.policy])
    seen.set(ylabel="seen of the data set, %", ylim=(0, None))
    repeats.set(ylabel="opens per fetch, so far", xlabel=unit, yscale="log")
    seen.legend()
    for axes in (seen, repeats):
        axes.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:  # no such format
        raise UsageError(f"plan: --draw {path}: {str(error).partition('(')[0].strip()}; write it as FILE.png") from None
    except OSError as error:
        raise GrowfsError(f"plan: --draw {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)
