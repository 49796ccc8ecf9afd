"""The results of `tools/bench peers`: a JSON file that is kept, and from which the page is written."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

FILE = Path(__file__).parents[2] / "docs" / "benchmarks.json"


@dataclass(slots=True)
class Results:
    """All runs.

    machine: properties that the figures depend on. peers: those that ran, by name. left_out: why others did not, by
    name. cases: the sizes of each case that ran. runs: dictionaries with case, peer, setting and figures.
    """

    machine: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    quick: bool = False
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def load(cls, file: Path) -> Results:
        values = json.loads(file.read_text())
        return cls(**{each.name: values[each.name] for each in fields(cls)})

    def save(self, file: Path) -> None:
        """Write a file. If nothing ran, one that is there stays."""
        if self.runs:
            file.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def add(self, case: str, peer: str, setting: str, figures: dict[str, Any]) -> None:
        self.date = datetime.now(timezone.utc).date().isoformat()
        self.runs.append({"case": case, "peer": peer, "setting": setting, "figures": figures})

    def of(self, case: str, peer: str, setting: str) -> list[dict[str, Any]]:
        """The figures of the rounds of a peer."""
        wanted = (case, peer, setting)
        return [run["figures"] for run in self.runs if (run["case"], run["peer"], run["setting"]) == wanted]

    def has(self, case: str) -> bool:
        return any(run["case"] == case for run in self.runs)

    def settings(self, case: str) -> list[str]:
        """The settings that a case ran with, in the order of the runs."""
        return list(dict.fromkeys(run["setting"] for run in self.runs if run["case"] == case))

    def named(self, case: str) -> list[str]:
        """The peers that ran a case, in the order of the tables."""
        ran = {run["peer"] for run in self.runs if run["case"] == case}
        return [name for name in self.peers if name in ran]


def spread(values: list[float], form: str = "{:.2f}") -> str:
    """The median, with the range if there is one."""
    middle = form.format(median(values))
    least, most = form.format(min(values)), form.format(max(values))
    return middle if least == most else f"{middle} ({least} to {most})"
