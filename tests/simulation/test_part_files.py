"""The warning about parts of few files: the --part-size that it names gives them enough, as `growfs plan` simulates."""

from __future__ import annotations

import re

import pytest

from growfs.rotation.parts import PART_FILES_MIN, CatalogFile, ExactPass, divide, small_parts
from growfs.simulation.exact import ExactResult, exact_warning, simulate_exact
from growfs.simulation.training import Workload
from growfs.units import CacheSize

GB = 10**9


def plan(files: int, cache: int, percent: int = 5) -> tuple[Workload, ExactResult]:
    """What `growfs plan --exact` finds for 1 TB."""
    workload = Workload(1000 * GB, files, cache * GB, bandwidth=1e8, read_rate=2e8)
    return workload, simulate_exact(workload, CacheSize(share=percent / 100))


@pytest.mark.parametrize("files", [5000, 20_000, 100_000])
@pytest.mark.parametrize("cache", [50, 200, 800])
def test_the_size_that_it_names_is_enough_and_not_much_more(files: int, cache: int) -> None:
    workload, found = plan(files, cache)
    warning = exact_warning(workload, [found])
    if warning is None:
        assert found.part_files >= 0.9 * PART_FILES_MIN
    elif "too small" in warning:
        assert plan(files, cache, 95)[1].part_files < 1.1 * PART_FILES_MIN
    else:
        (percent,) = re.findall(r"--part-size (\d+)%", warning)
        workload, found = plan(files, cache, int(percent))
        assert exact_warning(workload, [found]) is None
        assert found.part_files == pytest.approx(PART_FILES_MIN, rel=0.35)


@pytest.mark.parametrize(("files", "cache"), [(700, 630), (900, 800), (2000, 1000), (10_000, 2000), (10_000, 9000)])
def test_the_size_is_enough_for_the_parts_that_a_pass_really_has(files: int, cache: int) -> None:
    """Of 700 files, 300 would be in one of two parts and a bit. There are three, and no size makes it two."""

    def divided(percent: int) -> tuple[float, str | None]:
        catalog = [CatalogFile(id, f"{id}", 4096, 4096, False) for id in range(1, files + 1)]
        division, _ = divide(catalog, ExactPass(0, 2, cache * 4096, cache * 4096 * percent // 100))
        warning = small_parts(files, division.streamed_bytes, division.kept_bytes, cache * 4096)
        return files / len(division.parts), warning

    found, warning = divided(1)
    if warning is None:
        assert found >= PART_FILES_MIN
    elif "too small" in warning:
        assert max(divided(percent)[0] for percent in range(5, 95, 5)) < PART_FILES_MIN
    else:
        found, warning = divided(int(re.findall(r"--part-size (\d+)%", warning)[0]))
        assert found >= PART_FILES_MIN
        assert warning is None


def test_there_is_none_if_all_files_stay() -> None:
    assert small_parts(10, 0, 10 * GB, 20 * GB) is None
