"""The table of layouts: what each puts together, and which is suggested for the names of a listing."""

from __future__ import annotations

import random

import pytest

from growfs.remote.groups import GROUPS_MIN, LAYOUTS, PRESETS, FirstNames, group_of, suggestion
from tests import layouts


def first_names(paths: set[str]) -> FirstNames:
    """Those of a listing in the order of S3."""
    names = FirstNames()
    for path in sorted(paths):
        names.add(path)
    return names


def test_each_layout_has_an_example() -> None:
    assert [layout.name for layout in LAYOUTS] == list(layouts.LAYOUTS)


@pytest.mark.parametrize(("name", "sample"), layouts.LAYOUTS.items(), ids=list(layouts.LAYOUTS))
def test_a_layout_puts_samples_together_and_nothing_else(name: str, sample: layouts.Sample) -> None:
    samples = [sample(number) for number in range(200)]
    keys = [{group_of(name, path) for path in paths} for paths in samples]
    assert all(len(of_sample) == 1 for of_sample in keys)
    assert len(set.union(*keys)) == len(samples)


@pytest.mark.parametrize(("name", "sample"), layouts.LAYOUTS.items(), ids=list(layouts.LAYOUTS))
@pytest.mark.parametrize("count", [GROUPS_MIN, 3000])
def test_a_layout_is_suggested_by_its_names(name: str, sample: layouts.Sample, count: int) -> None:
    samples = [sample(number) for number in range(count)]
    found = suggestion(first_names(set().union({"README.md", "LICENSE"}, *samples)))
    assert found is not None
    assert f"--group {name} " in found.remedy.replace("'", "")
    one, other = found.found.removesuffix(" seem to belong together").split(" and ")
    assert any({one, other} <= paths for paths in samples)


@pytest.mark.parametrize("sample", layouts.UNRELATED.values(), ids=list(layouts.UNRELATED))
def test_nothing_is_suggested_for_files_that_are_samples(sample: layouts.Sample) -> None:
    assert suggestion(first_names(set().union(*(sample(number) for number in range(3000))))) is None


def test_a_few_pairs_are_no_layout() -> None:
    sample = layouts.LAYOUTS["carvana"]
    assert suggestion(path for number in range(GROUPS_MIN - 1) for path in sample(number)) is None


@pytest.mark.parametrize(
    ("group", "together", "alone"),
    [
        ("carvana", {"a/1.jpg", "a/1_mask.png"}, {"b/1.jpg", "b/2.jpg", ".hidden"}),
        ("carvana", {"train/1.jpg", "train_hq/1.jpg", "train_masks/1_mask.gif"}, {"test/1.jpg", "README"}),
        ("cityscapes", {"gtCoarse/x/a_000001_000002_gtCoarse_labelIds.png", "a_000001_000002_x.png"}, {"a_1_2_x.png"}),
        ("nnunet", {"D1/imagesTr/a.b_0000.png", "D1/labelsTr/a.b.png"}, {"D2/labelsTr/a.b.png", "D1/dataset.json"}),
        ("nnunet", {"imagesTs/a_0000.nii.gz", "imagesTs/a_0001.nii.gz"}, {"imagesTr/a_0000.nii.gz"}),
        ("shar", {"a/cuts.000000.jsonl.gz", "a/target_audio.000000.tar"}, {"b/recording.000000.tar", "a/x.tar"}),
        ("nemo", {"b1/audio_0.tar", "b1/sharded_manifests/manifest_0.json"}, {"audio_0.tar", "b2/audio_0.tar"}),
        ("nemo", {"b1/audio_0.tar", "b1/manifest_0.json"}, {"b1/audio_00.tar", "b1/tarred_audio_manifest.json"}),
        ("yolo", {"val/images/1.jpg", "val/labels/1.txt"}, {"train/images/1.jpg", "data.yaml"}),
        ("mirax", {"a/s.mrxs", "a/s/Slidedat.ini"}, {"b/s.mrxs", "a/s.txt"}),
        ("zarr", {"x/s.ome.zarr/.zattrs", "x/s.ome.zarr/a.zarr/0"}, {"x/t.zarr/.zattrs", "x/.zarr", "x/README"}),
        ("{top}", {"a/x", "a/b/y"}, {"b/x", "x"}),
        ("{dir:2}", {"a/b/x", "a/b/c/y"}, {"a/c/x", "a/x", "a/y", "x"}),
        ("{name}{dir:1}", {"a/b/x.jpg", "a/c/x.txt"}, {"b/b/x.jpg", "a/b/y.jpg"}),
        (r"^(.)|(.)$", {"a.x", "a.y"}, {"b.x"}),  # without a capture that did not take part
        (r"(\d+)-(\d+)", {"x/1-23", "1-23.txt"}, {"12-3", "1-2", "x", "y", "/1/2/3"}),
        (r"^(a)|b", {"a1", "a2"}, {"b1", "b2"}),
    ],
)
def test_a_key(group: str, together: set[str], alone: set[str]) -> None:
    assert len({group_of(group, path) for path in together}) == 1
    assert len({group_of(group, path) for path in together | alone}) == 1 + len(alone)


@pytest.mark.parametrize("group", PRESETS)
def test_no_name_of_a_remote_takes_long(group: str) -> None:
    """A match cannot be interrupted: this test would not end."""
    generator = random.Random(0)
    words = ["a", "/", ".", "_", "0", "_mask", "_000000", "images", "imagesTr/", "labelsTr/", ".zarr", "audio_", "\n"]
    for _ in range(100):
        few = generator.sample(words, 3)
        group_of(group, "".join(generator.choices(few, k=4000))[:4000])
