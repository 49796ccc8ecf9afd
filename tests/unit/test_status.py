"""The definition of the status: a dictionary for users, fields with types for growfs, and names that keep to rules."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

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


def test_every_field_stands_in_a_status_and_says_what_it_is() -> None:
    assert list(status()) == list(dict.fromkeys(field.path.partition(".")[0] for field in status_fields()))
    assert all(field.meaning.text for field in status_fields())


def test_a_status_of_a_later_growfs_is_understood() -> None:
    assert MountStatus.parse(STATUS | {"of a later growfs": 1}) == STATUS


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
