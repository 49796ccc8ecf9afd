"""The weight of the core may only fall: its size, what it knows of each feature, and who imports a feature."""

from __future__ import annotations

from functools import cache

from tools.coupling import Weight
from tools.features import FEATURES, OWNERS, ROOT

CEILINGS = {
    "files of the core": 109,
    "statements of the core": 11_601,
    "statements of all": 23_578,
    "statements of the largest function": 41,
    "constants in capitals": 543,
    "importers of exact": 1,
    "importers of peers": 2,
    "importers of fill": 0,
    "importers of links": 0,
    "importers of producers": 1,
    "importers of full disk": 3,
    "importers of members": 1,
    "importers of manifests": 0,
    "importers of metrics": 0,
    "importers of libfuse": 0,
    "importers of csi": 0,
    "importers of ray": 0,
    "importers of top": 0,
    "importers of report": 1,
    "importers of history": 0,
    "importers of simulation": 4,
    "importers of plan": 0,
    "importers of doctor": 0,
    "importers of verify": 1,
    "importers of stores": 11,
    "importers of open counter": 3,
    "importers of latency": 2,
    "importers of namespaces": 2,
    "importers of python api": 2,
    "importers of completion": 3,
    "importers of fstab": 1,
    "importers of cache": 0,
    "core's uses of exact": 59,
    "core's uses of peers": 77,
    "core's uses of fill": 36,
    "core's uses of links": 19,
    "core's uses of producers": 13,
    "core's uses of full disk": 76,
    "core's uses of members": 38,
    "core's uses of manifests": 0,
    "core's uses of metrics": 9,
    "core's uses of libfuse": 0,
}


@cache
def weight() -> Weight:
    return Weight()


def test_no_number_rises_and_each_ceiling_follows_its_number() -> None:
    numbers = weight().numbers()
    assert numbers.keys() == CEILINGS.keys()
    advice = []
    for name, ceiling in CEILINGS.items():
        number = numbers[name]
        if number > ceiling:
            advice.append(
                f"{name}: {number}, above the ceiling of {ceiling}. Move code into files of its feature, or remove as"
                " much as you add. If neither is possible, raise the ceiling in a commit that says why"
            )
        elif ceiling - number > ceiling // 50:
            advice.append(f"{name}: {number}, below the ceiling of {ceiling}. Lower the ceiling to {number}")
    assert not advice, "tools/coupling shows the details.\n" + "\n".join(advice)


def test_the_table_of_features_names_files_and_words_that_exist() -> None:
    """Otherwise, a file or word that is renamed would count as removed from the core."""
    assert [path for path in OWNERS if not (ROOT / "growfs" / path).exists()] == []
    identifiers = {name for module in weight().all for name in module.identifiers}
    words = [(feature, word) for feature in FEATURES for word in feature.words.split()]
    unused = [word for feature, word in words if not any(map(feature._replace(words=word).is_named_in, identifiers))]
    assert unused == []
