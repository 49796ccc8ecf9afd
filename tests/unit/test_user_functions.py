"""Functions that users pass by name, and the errors where one cannot be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from growfs.errors import UsageError
from growfs.remote.user_functions import Function


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "users_fine.py").write_text("def find(source):\n    return []\nnumber = 3\n")
    (tmp_path / "users_broken.py").write_text("1 / 0\n")
    (tmp_path / "users_needy.py").write_text("import not_installed_here\n")
    return str(tmp_path)


def test_a_function_is_imported_from_a_folder_a_file_or_growfs(folder: str) -> None:
    assert Function.parse("users_fine:find", folder).load()(None) == []
    in_file = Function.parse("./users_fine.py:find", folder)
    assert (str(in_file), in_file.load()(None)) == (f"{folder}/users_fine.py:find", [])
    own = Function.parse("tar", "/")
    assert (str(own), own.load().__name__) == ("growfs.producers:tar", "tar")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("users_fine:number", "has no function number"),
        ("users_fine:gone", "has no function gone"),
        ("users_gone:find", "there is no module users_gone; growfs looks in "),
        ("users_needy:find", "there is no module not_installed_here"),
        ("users_broken:find", "ZeroDivisionError: division by zero; try: python -c 'import users_broken'"),
        ("tarr", "has no function tarr"),
        ("a b", "is not a function; use module:function"),
        ("users_fine:", "is not a function"),
        ("./users_gone.py:find", "there is no file /.*/users_gone.py"),
        ("./users_fine.py:gone", "has no function gone"),
    ],
)
def test_a_function_that_cannot_be_imported_is_reported(folder: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Function.parse(text, folder).load()
