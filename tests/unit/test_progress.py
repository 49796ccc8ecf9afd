"""The progress of a waiting command, as it is shown on a terminal and elsewhere."""

from __future__ import annotations

import os
import sys

import pytest

from growfs.client import progress
from growfs.client.progress import Bar


def test_the_bar_shows_text_from_outside_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich draw
    monkeypatch.setenv("COLUMNS", "120")
    with Bar("mounting") as bar:
        bar.show("s3://[red]bucket/a[/x]\x1b[2J: is away")
    drawn = capsys.readouterr().err
    assert "s3://[red]bucket/a[/x]\N{REPLACEMENT CHARACTER}[2J: is away" in drawn
    assert "\x1b[2J" not in drawn


def test_without_standard_error_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with Bar("mounting") as bar:
        bar.show("one file")
        monkeypatch.setattr(sys, "stderr", None)
        bar.show("two files")
        monkeypatch.undo()
    assert capsys.readouterr().err == "growfs: mounting for 0 s: one file\n"
