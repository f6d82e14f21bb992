"""What a tree needs beside git: the version from the commit, unpacked once on the host, in the key of the build."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from perfbisect.errors import BuildFailed, UsageError
from perfbisect.lab.build import build_store
from perfbisect.lab.build.log_parser import Progress
from perfbisect.lab.build.pipeline import build
from perfbisect.recipes.builder import Archive
from repos import Files
from sharing import TINY, Yard
from shelf import Shelf, packed, shelf, sum_of
from waiting import finish

pytestmark = pytest.mark.tools

UNITS = {
    version: packed({f"unit-{version}/unit.h": f"#define UNIT {value}\n"})
    for version, value in (("1.0", 3), ("2.0", 4))
}


@pytest.fixture
def server() -> Iterator[Shelf]:
    with shelf({f"/{version}/unit_{version[0]}_0.tar.gz": unit for version, unit in UNITS.items()}) as state:
        yield state


def archive(server: Shelf, **keys: object) -> Archive:
    usual = {
        "address": f"{server.address}/{{version}}/unit_{{version:_}}.tar.gz",
        "file": "cmake/unit.cmake",
        "pattern": r'UNIT_NAME "unit_([0-9_]+)"',
        "unless": "extra/unit",
        "sha256": {version: sum_of(unit) for version, unit in UNITS.items()},
    }
    return msgspec.convert(usual | keys, Archive)


@pytest.fixture
def units(yard: Yard, server: Shelf) -> Yard:
    """Builds programs that end with UNIT of the archive unit, which they find by an option."""
    compiled = ["sh", "-c", "$CC {cflags} -I '{archives.unit}' {source}/main.c -o tiny"]
    assert TINY.build
    how = msgspec.structs.replace(TINY.build, compile=[compiled])
    yard.recipe = msgspec.structs.replace(yard.recipe, build=how, archives={"unit": archive(server)})
    return yard


def tree(named: str) -> Files:
    return {
        "main.c": "#include <unit.h>\nint main(void) { return UNIT; }\n",
        "cmake/unit.cmake": f'SET(UNIT_NAME "{named}")\n',
    }


def test_each_commit_has_the_version_that_it_names(units: Yard, server: Shelf) -> None:
    steps, built = finish(build(units.context(), units.git.commit(tree("unit_1_0"))))
    assert [each.stage for each in steps if isinstance(each, Progress)][:4] == ["checkout", "fetch", "fetch", "send"]
    first, second = built.facts, units.build(tree("unit_2_0"))
    assert first.binary != second.binary
    again = units.build(tree("unit_1_0") | {"other.c": "x"})
    assert again.binary == first.binary
    assert [path for path, _ in server.asked] == ["/1.0/unit_1_0.tar.gz", "/2.0/unit_2_0.tar.gz"]
    place = Path(build_store.prefix(units.host, sum_of(UNITS["1.0"])[:32]))
    assert [path.name for path in place.iterdir()] == ["unit.h"]
    (place / "unit.h").unlink()
    units.build(tree("unit_1_0") | {"other.c": "y"})
    assert (place / "unit.h").exists(), "what has changed there is unpacked again"
    assert len(server.asked) == 2


def test_its_sum_belongs_to_the_key(units: Yard, server: Shelf) -> None:
    first = units.build(tree("unit_1_0"))
    assert units.build(units.git.head).reused
    other = packed({"unit.h": "#define UNIT 5\n"})
    server.files["/1.0/unit_1_0.tar.gz"] = other
    changed = units.build(units.git.head, archives={"unit": archive(server, sha256={"1.0": sum_of(other)})})
    assert changed.key != first.key
    assert changed.binary != first.binary


def test_a_tree_that_has_it_or_knows_nothing_of_it_needs_none(units: Yard, server: Shelf) -> None:
    main = {"main.c": "int main(void) { return 0; }\n"}
    units.build(main)
    units.build(main | {"cmake/unit.cmake": "SET(UNIT_NAME", "extra/unit/unit.h": ""})
    assert server.asked == []


@pytest.mark.parametrize(
    ("named", "sentence", "hint"),
    [
        (
            "unit_9_9",
            "it needs unit 9.9, of which the recipe has no sum",
            'Add "9.9" = "SHA256" to [archives.unit.sha256]',
        ),
        ("odd", "its cmake/unit.cmake names no version of unit", "Let `archives.unit.pattern` of the recipe"),
    ],
)
def test_a_commit_whose_archive_is_unknown_is_skipped(units: Yard, named: str, sentence: str, hint: str) -> None:
    with pytest.raises(BuildFailed) as failed:
        units.build(tree(named))
    assert str(failed.value) == f"{units.git.head[:10]} cannot be checked out: {sentence}"
    assert failed.value.advice.startswith(hint)


def test_an_archive_that_would_write_elsewhere_is_refused(units: Yard, server: Shelf) -> None:
    bad = packed({"../../out": "x"})
    server.files["/1.0/unit_1_0.tar.gz"] = bad
    with pytest.raises(UsageError, match="is refused: it has names that lead out of the folder") as failed:
        units.build(tree("unit_1_0"), archives={"unit": archive(server, sha256={"1.0": sum_of(bad)})})
    assert failed.value.advice.startswith("It is unit 1.0, from http://127.0.0.1")
