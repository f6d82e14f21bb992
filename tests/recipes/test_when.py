from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.when import TreeFacts, applied, number, satisfies, version_text

Write = Callable[[str, str], Path]


@pytest.mark.parametrize(
    ("version", "rule", "holds"),
    [
        ("8.0.30", ">=8.0.30", True),
        ("8.0.9", ">=8.0.30", False),
        ("8.0.100", ">=8.0.30", True),
        ("3.8", ">=3.8.0", True),
        ("3.8.0", "==3.8", True),
        ("3.8.0", "!=3.8", False),
        ("3.29.9", ">=3.8,<3.30", True),
        ("3.30", ">=3.8, <3.30", False),
        ("3.7.17", ">=3.8,<3.30", False),
        ("17devel", ">=17", True),
        ("10.6.12-MariaDB", "<10.6.13", True),
        ("", ">=1", False),
        ("", "<1", False),
        ("unknown", "!=1", False),
    ],
)
def test_versions_are_compared_as_numbers(version: str, rule: str, holds: bool) -> None:
    assert satisfies(version, rule) is holds


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_exactly_one_of_less_equal_greater_holds(left: list[int], right: list[int]) -> None:
    version, limit = ".".join(map(str, left)), ".".join(map(str, right))
    assert sum(satisfies(version, f"{sign}{limit}") for sign in ("<", "==", ">")) == 1
    pad = max(len(left), len(right))
    assert satisfies(version, f"<{limit}") is (left + [0] * (pad - len(left)) < right + [0] * (pad - len(right)))


def test_the_version_is_what_looks_like_one() -> None:
    assert version_text("PACKAGE_VERSION='17.2'\nx 3\n") == "17.2"
    assert version_text("8.0.30-rc1; rm -rf x") == "8.0.30-rc1"
    assert version_text("none") == ""
    with pytest.raises(ValueError, match="no version number"):
        number("none")


def facts(version: str = "3.20", files: tuple[str, ...] = (), compiler: str = "gcc 12.2.0") -> TreeFacts:
    name, _, compiler_version = compiler.partition(" ")
    return TreeFacts(version, files.__contains__, name, compiler_version)


BLOCKS = """
[[when]]
version = ">=3.8,<3.30"
change.build.env.VERSION = "old"
[[when]]
file = "configure.ac"
change.build.configure = [["autoreconf"], ["{source}/configure"]]
[[when]]
missing = "VERSION"
change.build.env.VERSION = "none"
[[when]]
compiler = "gcc>=10"
change.variants.o2nofp.cflags = "-O2 -fcommon"
[[when]]
compiler = "clang"
change.build.env.CLANG = "1"
[[when]]
file = "server.c"
version = "<4"
change.server = {initialise = [], start = ["{prefix}/server"], ready = ["true"]}
"""


@pytest.mark.parametrize(
    ("given", "env", "cflags", "configure", "server"),
    [
        (facts(files=("VERSION",)), {"VERSION": "old"}, "-O2 -fcommon", 0, False),
        (facts("3.30", ("VERSION",)), {}, "-O2 -fcommon", 0, False),
        (facts("3.20", ()), {"VERSION": "none"}, "-O2 -fcommon", 0, False),  # a later block has the last word
        (facts(files=("VERSION", "configure.ac")), {"VERSION": "old"}, "-O2 -fcommon", 2, False),
        (facts("4", ("VERSION",), "clang 14"), {"CLANG": "1"}, "-O2 -fno-omit-frame-pointer", 0, False),
        (facts("4", ("VERSION",), "gcc 9.9"), {}, "-O2 -fno-omit-frame-pointer", 0, False),
        (facts("3.31", ("VERSION", "server.c"), "gcc 9"), {}, "-O2 -fno-omit-frame-pointer", 0, True),
        (facts("4", ("VERSION", "server.c"), "gcc 9"), {}, "-O2 -fno-omit-frame-pointer", 0, False),
        (facts("", ("VERSION", "server.c"), "gcc 9"), {}, "-O2 -fno-omit-frame-pointer", 0, False),
    ],
)
def test_blocks_apply_where_they_hold(
    write: Write, small: str, given: TreeFacts, env: dict[str, str], cflags: str, configure: int, server: bool
) -> None:
    write("builders/small/builder.toml", f'version = ["cat", "VERSION"]\n{small}\n{BLOCKS}')
    builder = load_builder("small")
    here = applied(builder, given)
    assert here.build.env == env
    assert here.variants["o2nofp"].cflags == cflags
    assert len(here.build.configure) == configure
    assert (here.server is not None) is server
    assert here.when == []
    assert (here.name, here.folder) == (builder.name, builder.folder)
    assert len(builder.when) == 6  # the recipe itself stays as it was


def test_a_recipe_without_blocks_stays_as_it_is(write: Write, small: str) -> None:
    write("builders/small/builder.toml", small)
    builder = load_builder("small")
    assert applied(builder, facts()) == builder
