"""The weight of the code, in numbers that reformatting cannot change: what the syntax tree contains.

For each feature (tools/features.py): its size, how often the core uses one of its words in an identifier, and which
modules outside of it import it. Then the size of the core, and of all. tests/test_weight.py keeps them from rising.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from tools.features import FEATURES, ROOT, Feature, module_name, owner, source_files

IDENTIFIERS: dict[type[ast.AST], str] = {
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.keyword: "arg",
    ast.alias: "name",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
}
"""Where a node has its identifier."""


@dataclass(slots=True)
class Module:
    """What counts in one module."""

    file: PurePath
    feature: Feature | None
    lines: int
    statements: int = 0
    constants: int = 0
    """Names in capitals that the module assigns."""
    largest: tuple[int, str] = (0, "")
    """The function with the most statements: how many, and its name."""
    imports: set[str] = field(default_factory=set)
    identifiers: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, checkout: Path, file: PurePath) -> Module:
        text = (checkout / "growfs" / file).read_text()
        module, tree = cls(file, owner(file), text.count("\n")), ast.parse(text)
        module.constants = sum(name.isupper() and len(name) > 1 for name in assigned(tree))  # T is a type variable
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt):
                module.statements += is_statement(node)
            if name := getattr(node, IDENTIFIERS.get(type(node), ""), None):
                module.identifiers[name] += 1
            if isinstance(node, ast.Import):
                module.imports.update(name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                module.imports.update((node.module, *(f"{node.module}.{name.name}" for name in node.names)))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = sum(map(is_statement, ast.walk(node)))
                module.largest = max(module.largest, (size, f"{module_name(file)}.{node.name}"))
        return module


def is_statement(node: ast.AST) -> bool:
    """Whether a node is a statement; docstrings are none."""
    return isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def assigned(tree: ast.Module) -> Iterable[str]:
    """The names that a module assigns at its top level."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


class Weight:
    """All numbers of a checkout."""

    def __init__(self, checkout: Path = ROOT) -> None:
        self.all = [Module.read(checkout, file) for file in source_files(checkout)]
        self.core = [module for module in self.all if not module.feature]
        self.largest = max(module.largest for module in self.all)
        self.identifiers: Counter[str] = sum((module.identifiers for module in self.core), Counter())

    def files(self, feature: Feature) -> list[Module]:
        return [module for module in self.all if module.feature is feature]

    def importers(self, feature: Feature) -> list[Module]:
        """The modules outside of a feature that import it."""
        own = {module_name(module.file) for module in self.files(feature)}
        return [module for module in self.all if module.feature is not feature and own & module.imports]

    def uses(self, feature: Feature) -> int:
        """How many identifiers in the core contain a word of a feature."""
        return sum(count for name, count in self.identifiers.items() if feature.is_named_in(name))

    def numbers(self) -> dict[str, int]:
        """The numbers that have a ceiling."""
        return {
            "files of the core": len(self.core),
            "statements of the core": statements(self.core),
            "statements of all": statements(self.all),
            "statements of the largest function": self.largest[0],
            "constants in capitals": sum(module.constants for module in self.all),
            **{f"importers of {feature.name}": len(self.importers(feature)) for feature in FEATURES},
            **{f"core's uses of {feature.name}": self.uses(feature) for feature in FEATURES if feature.words},
        }


def statements(modules: Iterable[Module]) -> int:
    return sum(module.statements for module in modules)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/coupling", description="Measure the core and its features.")
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT, metavar="CHECKOUT", help="default: this one")
    weight = Weight(parser.parse_args().checkout)
    print("feature     files  lines  statements  uses in the core  importers")
    for feature in FEATURES:
        files, importers = weight.files(feature), weight.importers(feature)
        lines, uses = sum(module.lines for module in files), weight.uses(feature) if feature.words else "-"
        names = " ".join(str(module.file) for module in importers)
        print(f"{feature.name:11} {len(files):5} {lines:6} {statements(files):11} {uses:>17}", end="  ")
        print(f"{len(importers)}: {names}" if importers else 0)
    for name, modules in ("core", weight.core), ("all", weight.all):
        constants = sum(module.constants for module in modules)
        lines = sum(module.lines for module in modules)
        print(f"{name:11} {len(modules):5} {lines:6} {statements(modules):11}  {constants} constants in capitals")
    print("largest function: {1}, {0} statements".format(*weight.largest))


if __name__ == "__main__":
    main()
