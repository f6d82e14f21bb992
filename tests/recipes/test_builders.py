"""Builders: found, merged with what they extend, checked, and changed for some trees and compilers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.errors import RecipeError, UsageError
from perfbisect.recipes.builder import Build
from perfbisect.recipes.builder_reader import build_of, load_builder, load_builders, recipe_files, variant_of
from perfbisect.recipes.when import TreeFacts, applied, satisfies, version_text

Write = Callable[[str, str], Path]


def test_a_small_recipe_is_complete(write: Write, small: str) -> None:
    file = write("builders/small/builder.toml", small)
    builder = load_builder("small")
    assert (builder.name, builder.folder, builder.inherited) == ("small", str(file.parent), [])
    assert builder.build.compile == [["make"]]
    assert builder.server is None


def test_every_builder_has_the_shared_variants(write: Write, small: str) -> None:
    write("builders/small/builder.toml", small + '[variants.native]\ncflags = "-O3"\n[variants.own]\ncc = "clang"\n')
    builder = load_builder("small")
    assert set(builder.variants) == {"o2nofp", "o2nofp-aligned", "lto", "native", "pgo", "relwithdebinfo", "own"}
    assert variant_of(builder).cflags == "-O2 -fno-omit-frame-pointer"
    assert variant_of(builder, "native").cflags == "-O3"
    assert variant_of(builder, "own").cc == "clang"
    with pytest.raises(RecipeError, match=r"no variant 'o2nfp'. Did you mean 'o2nofp'"):
        variant_of(builder, "o2nfp")


def test_folders_have_precedence_in_order(
    write: Write, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfbisect.recipes.configuration.SHIPPED", (tmp_path / "shipped",))
    for place in ("given", "builders", "shipped/builders"):
        write(f"{place}/small/builder.toml", small.replace("a small system", place))
        write(f"{place}/{place[0]}/builder.toml", small)
    assert load_builder("small", "given").summary == "given"
    assert load_builder("small").summary == "builders"
    (tmp_path / "builders/small/builder.toml").unlink()
    assert load_builder("small").summary == "shipped/builders"
    assert [builder.name for builder in load_builders("given")] == ["b", "g", "s", "small"]


def test_a_folder_given_must_exist() -> None:
    with pytest.raises(UsageError, match="no folder nowhere"):
        load_builders("nowhere")


def test_extends_merges_deeply(write: Write, small: str) -> None:
    write("builders/small/builder.toml", small + 'env = {A = "1", B = "1"}\n[[when]]\nfile = "x"\nchange.library = "a"')
    write(
        "builders/middle/builder.toml",
        'extends = "small"\nbuild.env.B = "2"\n[[when]]\nfile = "y"\nchange.library = "b"',
    )
    write("builders/top/builder.toml", 'extends = "middle"\nsummary = "top"\nbuild.compile = [["ninja"]]')
    top = load_builder("top")
    assert top.summary == "top"
    assert top.build.compile == [["ninja"]]
    assert top.build.install == [["make", "install"]]
    assert top.build.env == {"A": "1", "B": "2"}
    assert [Path(folder).name for folder in top.inherited] == ["middle", "small"]
    assert [block.file for block in top.when] == ["x", "y"]
    assert top.extends == ""


def test_a_recipe_extends_the_one_that_it_hides(write: Write, small: str) -> None:
    write("builders/small/builder.toml", small)
    write("given/small/builder.toml", 'extends = "small"\nsummary = "mine"')
    builder = load_builder("small", "given")
    assert (builder.summary, builder.driver) == ("mine", "small")


def test_files_of_extended_recipes_are_there_too(write: Write, small: str) -> None:
    write("builders/small/builder.toml", small)
    inherited = write("builders/small/patches/a.patch", "a")
    write("builders/small/my.cnf", "below")
    write("builders/top/builder.toml", 'extends = "small"')
    own = write("builders/top/my.cnf", "above")
    assert recipe_files(load_builder("top")) == {"patches/a.patch": inherited, "my.cnf": own}


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_cycle_of_extends_is_a_mistake(write: Write, small: str, length: int) -> None:
    for each in range(length):
        write(f"builders/r{each}/builder.toml", f'extends = "r{(each + 1) % length}"\n{small}')
    with pytest.raises(RecipeError, match=r"`extends` is a cycle: .*r0/builder.toml → "):
        load_builder("r0")


def test_what_is_missing_is_named(write: Write) -> None:
    file = write("builders/empty/builder.toml", 'summary = "x"')
    with pytest.raises(RecipeError) as caught:
        load_builder("empty")
    assert str(caught.value) == f"{file}: `driver` is missing: it must be text."


def test_a_recipe_without_build_leaves_it_to_the_tree(write: Write) -> None:
    write("builders/served/builder.toml", 'summary = "x"\ndriver = "y"')
    assert build_of(load_builder("served")) == Build()
    how = '[build]\ncompile = [["make"]]\ninstall = []\nartifacts = ["a"]'
    write("builders/mine/builder.toml", f'extends = "served"\n{how}')
    assert build_of(load_builder("mine")).compile == [["make"]]


def test_a_mistake_in_what_is_extended_names_that_file(write: Write, small: str) -> None:
    wrong = write("builders/small/builder.toml", small + "nonsense = 1")
    write("builders/top/builder.toml", 'extends = "small"')
    for mistake in ("nonsense", "is not UTF-8 text"):
        with pytest.raises(RecipeError, match=mistake) as caught:
            load_builder("top")
        assert str(caught.value).startswith(f"{wrong}:")
        wrong.write_bytes(b"summary = '\xff'")


def test_an_unknown_builder_names_the_nearest(write: Write, small: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_builder("x")
    assert caught.value.advice == "There are no builders at all."
    write("builders/small/builder.toml", small)
    write("builders/other/builder.toml", small)
    with pytest.raises(RecipeError, match=r"no builder 'smal'. Did you mean 'small'") as caught:
        load_builder("smal")
    assert caught.value.advice == "Builders: other, small."
    with pytest.raises(RecipeError, match="no builder"):
        load_builder("../builders/small")


SERVER = """
[server]
initialise = [["init"]]
start = ["serve", "{config}"]
ready = ["ask"]
config = "my.cnf"
"""


def test_a_configuration_file_may_be_inherited_and_is_checked(write: Write, small: str) -> None:
    write("builders/small/builder.toml", small + SERVER)
    with pytest.raises(RecipeError, match=r'builder.toml: `server.config` is "my.cnf", but .* has no such file'):
        load_builder("small")
    write("builders/small/my.cnf", "size = {cache}M\n{settings}\n")
    write("builders/child/builder.toml", 'extends = "small"\n[server.settings]\na = true\n')
    assert load_builder("child").server.settings == {"a": True}  # type: ignore[union-attr]
    write("builders/child/my.cnf", "size = {cash}M\n")
    with pytest.raises(RecipeError, match=r"child/my.cnf: .*unknown placeholder \{cash\}. Did you mean 'cache'"):
        load_builder("child")
    assert load_builder("small").server


def test_settings_are_simple_values(write: Write, small: str) -> None:
    write("builders/small/my.cnf", "")
    write("builders/small/builder.toml", small + SERVER + "[server.settings]\na = [1]\n")
    with pytest.raises(RecipeError, match=r"`server.settings.a` is a list, but must be"):
        load_builder("small")


@pytest.mark.parametrize("key", ["debian", "fedora"])
@pytest.mark.parametrize("name", ["x; reboot", "-o", "$(x)", "../x", "x y", "x\\n"])
def test_a_package_of_a_distribution_is_a_name(key: str, name: str, write: Write, small: str) -> None:
    write("builders/small/builder.toml", f'{key} = "{name}"\n{small}')
    with pytest.raises(RecipeError, match=rf"`{key}`"):
        load_builder("small")


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
