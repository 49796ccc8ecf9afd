"""What another user of the machine prepares in a folder, so that root's `growfs fill` deletes and writes elsewhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import NOBODY, OtherUser, assert_refused, other_user
from tests.crash.scene import alive
from tests.extensions.fill.conftest import Fill
from tests.harness import files_below, make_tree, until


@pytest.fixture
def user() -> Iterator[OtherUser]:
    with other_user() as user:
        yield user


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of root that looks like the folder of the trees, and like a tree."""
    (tmp_path / "precious/0007/class0").mkdir(parents=True)
    (tmp_path / "precious/0007/class0/thesis").write_text("data")
    (tmp_path / "precious").chmod(0o700)
    return tmp_path / "precious"


def content(folder: Path) -> dict[str, int]:
    """Everything below a folder, and when it was changed."""
    return {str(path.relative_to(folder)): path.lstat().st_ctime_ns for path in (folder, *folder.rglob("*"))}


def give(user: OtherUser, *paths: Path) -> None:
    for path in paths:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def test_another_user_begins_no_generation(growfs: Fill, user: OtherUser, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        growfs.mountpoint = Path(folder)
        growfs.fill(tmp_path / "remote")
        assert_refused(user.run("next", growfs.mountpoint), "this mount belongs to another user; run the command as")
        growfs.run("stop", folder)


@pytest.mark.promise(31)
def test_a_folder_of_another_user_is_not_filled(growfs: Fill, user: OtherUser, tmp_path: Path, precious: Path) -> None:
    """Nor one that root owns within it, which its owner may replace."""
    make_tree(tmp_path / "remote", directories=1, files=2)
    before = content(precious)
    growfs.mountpoint = user.folder / "train"
    script = f"mkdir train; cd train; ln -s /nonexistent .growfs; ln -s {precious} generations; ln -s {precious} .cache"
    assert user.run_program("sh", "-ec", f"cd {user.folder}; {script}").returncode == 0
    refused = growfs.fill(tmp_path / "remote", check=False)
    assert f"is inside {user.folder}, which belongs to another user (uid {NOBODY})" in refused
    assert "choose another folder" in refused
    growfs.mountpoint = growfs.mountpoint.rename(tmp_path / "train")
    assert f"chown -h 0 {tmp_path}/train" in growfs.fill(tmp_path / "remote", check=False)
    assert content(precious) == before
    assert not growfs.cache_dir.exists()


@pytest.mark.promise(31)
@pytest.mark.parametrize(
    ("link", "refusal"),
    [
        (".growfs", "is a link that belongs to another user"),
        (".cache", "is a link that belongs to another user"),
        ("current", "is a link that belongs to another user"),
        ("generations", "is not a folder"),
        ("generations/0007", "is a link that growfs did not create"),
        ("generations/0007/class0", "is a link that growfs did not create"),
    ],
)
def test_a_link_of_another_user_in_a_folder_of_root_leads_nowhere(
    growfs: Fill, user: OtherUser, tmp_path: Path, precious: Path, link: str, refusal: str
) -> None:
    """As it stays in a folder that root took over from that user."""
    make_tree(tmp_path / "remote", directories=1, files=2)
    before = content(precious)
    growfs.mountpoint = growfs.mountpoint.rename(tmp_path / "train")
    path = growfs.mountpoint / link
    path.parent.mkdir(parents=True, exist_ok=True)
    (growfs.mountpoint / ".growfs").symlink_to("/nonexistent")
    path.unlink(missing_ok=True)
    path.symlink_to(precious.joinpath(*Path(link).parts[1:]))
    give(user, path)
    if link == ".cache":
        growfs.cache_dir = path
    assert f"growfs: {path}: {refusal}" in growfs.fill(tmp_path / "remote", check=False)
    assert content(precious) == before


@pytest.mark.promise(31)
def test_a_folder_where_others_may_write_is_not_filled(growfs: Fill, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.mountpoint.chmod(0o777)
    assert f"chmod go-w {growfs.mountpoint}" in growfs.fill(tmp_path / "remote", check=False)
    assert os.listdir(growfs.mountpoint) == []
    growfs.mountpoint.chmod(0o755)
    (growfs.mountpoint / "generations/0007/class0").mkdir(parents=True)
    (growfs.mountpoint / ".growfs").symlink_to("/nonexistent")
    (growfs.mountpoint / "generations/0007/class0").chmod(0o777)
    refused = growfs.fill(tmp_path / "remote", check=False)
    assert f"chmod go-w {growfs.mountpoint}/generations/0007/class0" in refused


@pytest.mark.promise(31)
def test_a_folder_that_is_given_to_another_user_is_filled_no_more(
    growfs: Fill, user: OtherUser, tmp_path: Path, precious: Path
) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.fill(tmp_path / "remote")
    before = content(precious)
    daemon = growfs.status()["pid"]
    give(user, growfs.mountpoint)
    until(lambda: not alive(daemon))
    assert f"{growfs.mountpoint}: belongs to another user (uid {NOBODY})" in growfs.log()
    assert content(precious) == before


SWAPPED = """
import os
from growfs.extensions.fill import trees
make_alike = trees.make_alike
def swap(*arguments):
    if not os.path.exists({moved!r}):
        os.rename({home!r}, {moved!r})
        os.makedirs({home!r} + "/train")
        os.symlink({precious!r}, {home!r} + "/train/generations")
    return make_alike(*arguments)
trees.make_alike = swap
"""


@pytest.mark.promise(31, 44)
def test_what_takes_the_place_of_a_folder_that_is_being_filled_is_not_touched(
    growfs: Fill, tmp_path: Path, precious: Path
) -> None:
    """Its trees are reached through descriptors, whatever the path leads to by now."""
    tree = make_tree(tmp_path / "remote", directories=2, files=2)
    growfs.mountpoint = tmp_path / "home" / "train"
    growfs.mountpoint.mkdir(parents=True)
    growfs.env["TEST_SETUP"] = SWAPPED.format(
        home=str(tmp_path / "home"), moved=str(tmp_path / "moved"), precious=str(precious)
    )
    before = content(precious)
    growfs.fill(tmp_path / "remote", "--settle", "0")
    until(lambda: "moved or removed" in growfs.log())
    assert content(precious) == before
    assert set(files_below((tmp_path / "moved/train/generations/0001").resolve())) == set(tree)
