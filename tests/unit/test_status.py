"""The definition of the status: a dictionary for users, fields with types for growfs, and names that keep to rules."""

from __future__ import annotations

import functools
import itertools
import json
import operator
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from growfs.daemon.status_text import brief, printable, render, state_text
from growfs.status_and_metrics import METRICS, MountState, MountStatus, status_fields
from tests.unit.test_status_text import PEERS, READER, STATUS, status


def test_a_status_is_the_dictionary_that_status_json_has() -> None:
    everything = status(peers=PEERS, readers=[READER], outage={"since": 1.0, "why": "x", "next_try_s": 2.0})
    assert everything == STATUS | {"peers": PEERS, "readers": [READER], "outage": everything["outage"]}
    assert MountStatus.parse(json.loads(json.dumps(everything))) == everything
    assert pickle.loads(pickle.dumps(everything)).coverage.pass_ == everything["coverage"]["pass"] == 1
    assert everything.readers[0].command == everything["readers"][0]["command"] == "python"
    assert everything.state is MountState.FILLING
    assert everything["state"] == "filling"
    assert replace(everything, state=MountState.HELD)["state"] == "held"
    assert MountStatus.parse(STATUS | {"of a later growfs": 1}) == STATUS


def test_every_field_stands_in_a_status_and_says_what_it_is() -> None:
    assert list(status()) == list(dict.fromkeys(field.path.partition(".")[0] for field in status_fields()))
    assert all(field.meaning.text for field in status_fields())


NONSENSE: tuple[Any, ...] = (None, "x", [], {}, [1], True, -(1 << 70), float("inf"), float("nan"), 10**400, "\ud800")


def test_what_cannot_be_a_status_is_refused_when_it_is_read() -> None:
    """Otherwise a daemon of another user could make a command of root fail anywhere."""
    everything = status(peers=PEERS, readers=[READER], outage={"since": 1.0, "why": "x", "next_try_s": 2.0})
    whole = json.loads(json.dumps(everything))
    for nonsense, path in itertools.product(NONSENSE, list(paths_in(whole))):
        changed = json.loads(json.dumps(whole))
        *above, last = path
        functools.reduce(operator.getitem, above, changed)[last] = nonsense
        try:
            parsed = MountStatus.parse(changed)
        except (TypeError, ValueError, KeyError):
            continue
        assert printable(brief(parsed) + state_text(parsed) + render(parsed)).isprintable()


def paths_in(value: Any) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to each value within an object, at any depth."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield (key,)
        if isinstance(each, (dict, list)):
            yield from ((key, *below) for below in paths_in(each))


def test_the_names_follow_the_conventions() -> None:
    """See prometheus.io/docs/practices/naming: counters end with _total, and units are whole words."""
    names = {field.metric: field.meaning.kind for field in status_fields() if field.metric}
    names |= {metric.name: metric.kind for metric in METRICS}
    assert len(names) == sum(field.metric is not None for field in status_fields()) + len(METRICS)
    for name, kind in names.items():
        assert name.startswith("growfs_")
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_s", "_ms", "_mb")), name


UNITS = {"bytes_per_s": "bytes/s", "bytes": "bytes", "s": "seconds", "at": "time"}


def test_a_unit_is_the_one_that_the_name_tells() -> None:
    for field in status_fields():
        name = "_" + field.path.rpartition(".")[2].removesuffix("_total")
        told = [unit for end, unit in UNITS.items() if name.endswith(f"_{end}")]
        assert not told or field.meaning.unit == told[0], field.path
