"""Which differences between the build hosts of one host are refused, and which are told."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.errors import RecipeError, UsageError
from perfbisect.hunt.build_hosts import build_ahead
from perfbisect.lab.checks import Level
from perfbisect.lab.checks.all_hosts import BuildSide, differing, read_release
from perfbisect.recipes.inventory import HostEntry, load_hosts

B1 = BuildSide(
    "b1", "/data", "x86_64", "Debian 12, glibc 2.36", ("gcc 12.2.0", "g++ 12.2.0", "GNU ld 2.40"), "aaaa", "Xeon",
    "4.7.5", 32,
)  # fmt: skip
B2 = replace(B1, name="b2")


def told(*sides: BuildSide, native: bool = False) -> list[tuple[Level, str]]:
    return [(finding.level, finding.text) for finding in differing("quiet", sides, native=native)]


def test_alike() -> None:
    assert told(B1, B2) == []
    assert told(B1) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"compiler": ("gcc 13.1.0", *B1.compiler[1:])}, "gcc 12.2.0 on b1 and b3, gcc 13.1.0 on b2"),
        ({"compiler": (*B1.compiler[:2], "GNU ld 2.41")}, "GNU ld 2.40 on b1 and b3, GNU ld 2.41 on b2"),
        ({"architecture": "aarch64"}, "x86_64 on b1 and b3, aarch64 on b2"),
        ({"root": "/home/x"}, "/data on b1 and b3, /home/x on b2"),
    ],
)
def test_what_makes_other_binaries_is_refused(change: dict[str, object], words: str) -> None:
    [(level, text)] = told(B1, replace(B2, **change), replace(B1, name="b3"))  # type: ignore[arg-type]
    assert level is Level.REFUSED
    assert text.endswith(words)


def test_a_processor_matters_where_it_is_compiled_for() -> None:
    other = replace(B2, processor="bbbb", cpu="EPYC")
    assert [level for level, _ in told(B1, other)] == [Level.NOTE]
    assert [level for level, _ in told(B1, other, native=True)] == [Level.REFUSED]


def test_other_systems_are_warned_of_and_speed_is_noted() -> None:
    other = replace(B2, release="Ubuntu 22.04, glibc 2.35", ccache="4.11", cores=8)
    assert [level for level, _ in told(B1, other)] == [Level.WARNING, Level.NOTE, Level.NOTE]


def test_two_names_of_one_folder_are_refused() -> None:
    here = replace(B1, folder="boot1 8:1")
    same, beside, elsewhere = (replace(B2, folder=folder) for folder in ("boot1 8:1", "boot1 8:2", "boot2 8:1"))
    [(level, text)] = told(here, same)
    assert level is Level.REFUSED
    assert text == "b1 and b2, which build for quiet, are the same machine with the same root folder"
    assert told(here, beside) == told(here, elsewhere) == []


def test_what_is_not_known_does_not_differ() -> None:
    unknown = BuildSide("b2", "/data", "", "", (), "", "", "", 0)
    assert told(B1, unknown, native=True) == []


def test_the_release_of_a_distribution() -> None:
    assert (
        read_release('NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
        == "Debian GNU/Linux 12 (bookworm)"
    )
    assert read_release("NAME=x\n") is None


def entry(name: str, *builders: str) -> HostEntry:
    return HostEntry(name=name, build_hosts=[*builders])


def test_who_builds() -> None:
    alone, both, away = entry("a"), entry("a", "a", "b", "b"), entry("a", "b")
    assert (alone.built_on, alone.built_elsewhere, alone.builds) == (("a",), (), True)
    assert (both.built_on, both.built_elsewhere, both.builds) == (("a", "b"), ("b",), True)
    assert (away.built_on, away.built_elsewhere, away.builds) == (("b",), ("b",), False)
    old = HostEntry(name="a", build_host="b")
    assert (old.built_elsewhere, old.builds) == (("b",), False)


def test_build_hosts_are_shared_by_all_hosts_of_a_hunt_or_are_single() -> None:
    assert build_ahead([entry("a", "x", "y")])
    assert build_ahead([entry("a", "x")])
    assert build_ahead([entry("a", "x", "y"), entry("b", "y", "x", "b")])
    assert not build_ahead([entry("a")])
    assert not build_ahead([entry("a"), entry("b", "a")])
    assert not build_ahead([entry("a", "x"), entry("b")])
    for other in (entry("b"), entry("b", "x"), entry("x", "y", "z")):
        with pytest.raises(UsageError, match="Several hosts build for a: x and y"):
            build_ahead([entry("a", "x", "y"), other])


def test_the_old_key_beside_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('[hosts.a]\nbuild_host = "b"\nbuild_hosts = ["b"]\n')
    with pytest.raises(RecipeError, match=r"`hosts\.a\.build_host` is given beside `build_hosts`"):
        load_hosts(file)
