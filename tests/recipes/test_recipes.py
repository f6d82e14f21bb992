"""Recipes of builders and workloads: finding, `extends`, checks, placeholders, and changes for some source trees.

mistakes.txt has mistakes with their errors, by the kind of file. An error names the file, the key, the wrong value and
the allowed values. If an error ends with a message of Python or has several lines, mistakes.txt has only its beginning.
"""

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from labs import SUITE
from perfbisect.errors import RecipeError, UsageError
from perfbisect.recipes.builder import Build
from perfbisect.recipes.builder_reader import (
    TreeFacts,
    find_variant,
    load_builder,
    load_builders,
    recipe_files,
    recipe_for_tree,
    required_build_section,
    version_satisfies,
    version_text,
)
from perfbisect.recipes.configuration import load_configuration
from perfbisect.recipes.inventory import load_hosts, load_leases
from perfbisect.recipes.placeholders import fill_command, fill_text
from perfbisect.recipes.workload import load_workload, load_workloads, qualified_name

Write = Callable[[str, str], Path]


KINDS = re.split("^## ", Path(__file__).with_name("mistakes.txt").read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("mistakes", KINDS, ids=lambda mistakes: mistakes.partition("\n")[0])
def test_mistake_in_a_file_is_reported(write: Write, small: str, tmp_path: Path, mistakes: str) -> None:
    write("builders/small/builder.toml", small)
    write("workloads/tables/select.lua", "")
    kind, *blocks = mistakes.strip().split("\n\n")
    name, form, load = {
        "end of a builder": ("builders/wrong/builder.toml", small + "{}", load_builders),
        "beginning of a builder": ("builders/wrong/builder.toml", "{}\n" + small, load_builders),
        "builder": ("builders/wrong/builder.toml", "{}", load_builders),
        "suite": ("workloads/tables/suite.toml", SUITE + "{}", load_workloads),
        "whole suite": ("workloads/tables/suite.toml", "{}", load_workloads),
        "host": ("hosts.toml", "[hosts.big]\n{}", load_hosts),
        "leases": ("hosts.toml", "{}", load_leases),
        "config": ("config.toml", "[shared]\n{}\n", load_configuration),
    }[kind]
    for block in blocks:
        mistake, sentence = block.split("\n→ ")
        file = write(name, form.replace("{}", mistake))
        with pytest.raises(RecipeError) as caught:
            load()
        said = (
            str(caught.value).replace(str(tmp_path), "…").removeprefix(f"…/{file.relative_to(tmp_path)}").lstrip(": ")
        )
        assert said == sentence or (said.startswith(sentence) and sentence[-1] not in ".?"), block


def test_mistake_in_an_extended_recipe_names_its_file(write: Write, small: str) -> None:
    wrong = write("builders/small/builder.toml", small + "nonsense = 1")
    write("builders/top/builder.toml", 'extends = "small"')
    for mistake in ("nonsense", "is not UTF-8 text"):
        with pytest.raises(RecipeError, match=mistake) as caught:
            load_builder("top")
        assert str(caught.value).startswith(str(wrong))
        wrong.write_bytes(b"summary = '\xff'")


def test_small_recipe_is_complete_and_has_the_shared_variants(write: Write, small: str) -> None:
    file = write(
        "builders/small/builder.toml", small + '[variants.native]\ncflags = "-O3"\n[variants.own]\ncc = "clang"\n'
    )
    builder = load_builder("small")
    assert (builder.name, builder.folder, builder.inherited) == ("small", str(file.parent), [])
    assert (builder.build.compile, builder.server) == ([["make"]], None)
    assert set(builder.variants) == {"o2nofp", "o2nofp-aligned", "lto", "native", "pgo", "relwithdebinfo", "own"}
    assert find_variant(builder).cflags == "-O2 -fno-omit-frame-pointer"
    assert (find_variant(builder, "native").cflags, find_variant(builder, "own").cc) == ("-O3", "clang")
    with pytest.raises(RecipeError, match=r"no variant 'o2nfp' of builder small. Did you mean 'o2nofp'"):
        find_variant(builder, "o2nfp")


def test_earlier_recipe_folder_wins(write: Write, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfbisect.recipes.configuration.SHIPPED", (tmp_path / "shipped",))
    for place in ("given", "builders", "shipped/builders"):
        write(f"{place}/small/builder.toml", small.replace("a small system", place))
        write(f"{place}/{place[0]}/builder.toml", small)
    assert load_builder("small", "given").summary == "given"
    assert load_builder("small").summary == "builders"
    (tmp_path / "builders/small/builder.toml").unlink()
    assert load_builder("small").summary == "shipped/builders"
    assert [builder.name for builder in load_builders("given")] == ["b", "g", "s", "small"]
    with pytest.raises(UsageError, match="The folder nowhere does not exist"):
        load_builders("nowhere")


def test_extends_merges_nested_tables(write: Write, small: str) -> None:
    write("builders/small/builder.toml", small + 'env = {A = "1", B = "1"}\n[[when]]\nfile = "x"\nchange.library = "a"')
    inherited, _ = write("builders/small/patches/a.patch", "a"), write("builders/small/my.cnf", "below")
    middle = 'extends = "small"\nbuild.env.B = "2"\n[[when]]\nfile = "y"\nchange.library = "b"'
    write("builders/middle/builder.toml", middle)
    write("builders/top/builder.toml", 'extends = "middle"\nsummary = "top"\nbuild.compile = [["ninja"]]')
    own = write("builders/top/my.cnf", "above")
    top = load_builder("top")
    assert (top.summary, top.build.compile, top.build.install) == ("top", [["ninja"]], [["make", "install"]])
    assert top.build.env == {"A": "1", "B": "2"}
    assert [Path(folder).name for folder in top.inherited] == ["middle", "small"]
    assert [block.file for block in top.when] == ["x", "y"]
    assert top.extends == ""
    assert recipe_files(top) == {"patches/a.patch": inherited, "my.cnf": own}
    write("given/small/builder.toml", 'extends = "small"\nsummary = "mine"')
    hiding = load_builder("small", "given")
    assert (hiding.summary, hiding.driver) == ("mine", "small"), "it extends the recipe that it hides"


def test_cycle_of_extends_is_reported(write: Write, small: str) -> None:
    for length in (1, 2, 3):
        for each in range(length):
            write(f"builders/r{each}/builder.toml", f'extends = "r{(each + 1) % length}"\n{small}')
        with pytest.raises(RecipeError, match=r"`extends` is a cycle: .*r0/builder.toml → "):
            load_builder("r0")


def test_recipe_without_build_uses_the_build_system_of_the_tree(write: Write) -> None:
    write("builders/served/builder.toml", 'summary = "x"\ndriver = "y"')
    assert required_build_section(load_builder("served")) == Build()
    how = '[build]\ncompile = [["make"]]\ninstall = []\nartifacts = ["a"]'
    write("builders/mine/builder.toml", f'extends = "served"\n{how}')
    assert required_build_section(load_builder("mine")).compile == [["make"]]


def test_error_of_an_unknown_builder_names_the_most_similar(write: Write, small: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_builder("x")
    assert caught.value.advice == "No builders exist."
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


def test_configuration_file_is_inherited_and_checked(write: Write, small: str) -> None:
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


def test_versions_are_compared_as_numbers() -> None:
    hold = [
        ("8.0.30", ">=8.0.30"), ("8.0.100", ">=8.0.30"), ("3.8", ">=3.8.0"), ("3.8.0", "==3.8"), ("3.8", "<=3.8.0"), ("3.29.9", ">=3.8,<3.30"),
        ("17devel", ">=17"), ("10.6.12-MariaDB", "<10.6.13"),
    ]  # fmt: skip
    not_ = [
        ("8.0.9", ">=8.0.30"), ("3.8.0", "!=3.8"), ("3.30", ">=3.8, <3.30"), ("3.7.17", ">=3.8,<3.30"), ("", ">=1"), ("", "<1"),
        ("unknown", "!=1"),
    ]  # fmt: skip
    assert [version_satisfies(*each) for each in hold + not_] == [True] * len(hold) + [False] * len(not_)


def test_version_is_found_in_an_output() -> None:
    printed = {"PACKAGE_VERSION='17.2'\nx 3\n": "17.2", "8.0.30-rc1; rm -rf x": "8.0.30-rc1", "none": ""}
    assert {text: version_text(text) for text in printed} == printed


def facts(version: str = "3.20", files: tuple[str, ...] = (), compiler: str = "gcc 12.2.0") -> TreeFacts:
    name, _, compiler_version = compiler.partition(" ")
    return TreeFacts(version, files.__contains__, name, compiler_version)


BLOCKS = Path(__file__).with_name("when.toml").read_text()


@pytest.mark.parametrize(
    ("given", "env", "cflags", "configure", "server"),
    [
        (facts(files=("VERSION",)), {"VERSION": "old"}, "-O2 -fcommon", 0, False),
        (facts("3.30", ("VERSION",)), {}, "-O2 -fcommon", 0, False),
        (facts("3.20", ()), {"VERSION": "none"}, "-O2 -fcommon", 0, False),  # a later block overrides
        (facts(files=("VERSION", "configure.ac")), {"VERSION": "old"}, "-O2 -fcommon", 2, False),
        (facts("4", ("VERSION",), "clang 14"), {"CLANG": "1"}, "-O2 -fno-omit-frame-pointer", 0, False),
        (facts("4", ("VERSION",), "gcc 9.9"), {}, "-O2 -fno-omit-frame-pointer", 0, False),
        (facts("3.31", ("VERSION", "server.c"), "gcc 9"), {}, "-O2 -fno-omit-frame-pointer", 0, True),
        (facts("4", ("VERSION", "server.c"), "gcc 9"), {}, "-O2 -fno-omit-frame-pointer", 0, False),
        (facts("", ("VERSION", "server.c"), "gcc 9"), {}, "-O2 -fno-omit-frame-pointer", 0, False),
    ],
)
def test_when_blocks_apply_if_their_conditions_hold(
    write: Write, small: str, given: TreeFacts, env: dict[str, str], cflags: str, configure: int, server: bool
) -> None:
    write("builders/small/builder.toml", f'version = ["cat", "VERSION"]\n{small}\n{BLOCKS}')
    builder = load_builder("small")
    here = recipe_for_tree(builder, given)
    assert (here.build.env, here.variants["o2nofp"].cflags) == (env, cflags)
    assert (len(here.build.configure), here.server is not None) == (configure, server)
    assert (here.name, here.folder, here.when) == (builder.name, builder.folder, [])
    assert len(builder.when) == 6  # the recipe itself stays as it was
    assert recipe_for_tree(here, given) == here, "without blocks"


@pytest.fixture
def suite(write: Write) -> Path:
    write("workloads/tables/select.lua", "")
    return write("workloads/tables/suite.toml", SUITE)


def test_defaults_of_a_suite_apply_to_each_workload(suite: Path) -> None:
    select, view = load_workloads()
    assert (select.name, select.suite, select.driver, select.folder) == ("select", "tables", "small", str(suite.parent))
    assert (select.group, select.time, select.args) == ("point", 5.0, {"tables": 1, "rate": 1})
    assert (view.group, view.args, view.statement) == ("range", {"tables": 1, "rate": 0.5}, "SELECT 1;")


def test_workload_is_found_by_its_short_or_qualified_name(suite: Path, write: Write) -> None:
    assert load_workload("view", "small") == load_workload("tables/view", "small")
    mine = SUITE.replace('script = "select.lua"', 'statement = "mine"')
    write("given/tables/suite.toml", mine)
    assert load_workload("select", "small", "given").statement == "mine", "it hides the suite of its name"
    write("workloads/more/suite.toml", mine.replace('"small"', '["other", "third"]'))
    found = [load_workload("view", driver) for driver in ("small", "other", "third")]
    assert [(each.suite, each.driver) for each in found] == [("tables", "small"), ("more", "other"), ("more", "third")]
    with pytest.raises(RecipeError, match=r"no workload 'selct' for small. Did you mean 'select'") as caught:
        load_workload("selct", "small")
    assert caught.value.advice == "Workloads for small: select, view."
    with pytest.raises(
        RecipeError, match=r"no workload 'view' for last. The workload of that name is for other, small, t"
    ):
        load_workload("view", "last")
    write("workloads/more/suite.toml", mine)
    with pytest.raises(RecipeError, match="Several suites have a workload 'view'") as caught:
        load_workload("view", "small")
    assert caught.value.advice == "Choose one of more/view, tables/view."
    assert qualified_name(load_workload("more/view", "small")) == "more/view"


def test_command_has_args_as_placeholders_and_a_printed_metric(suite: Path) -> None:
    own = 'summary = "x"\ncommand = ["x", "--size={key-size}"]\nargs = {key-size = 20}\nprepare_commands = [["y", "{tables}"]]'
    suite.write_text(f"{SUITE}[workloads.x]\n{own}")
    assert load_workload("x", "small").args == {"tables": 1, "rate": 0.5, "key-size": 20}
    for found, metric in (("", "latency"), ('rate = "(x)"', "rate"), ('cost = "$.x"', "cost")):
        suite.write_text(f'{SUITE}[workloads.x]\nsummary = "x"\ncommand = ["x"]\n{found}')
        assert load_workload("x", "small").metric == metric
    assert load_workload("view", "small").metric == "qps"


FLAGS, PATH = {"cflags": "-O2 -g"}, {"prefix": "/a b"}
AGAIN = ["sh", "-c", 'exec "$@"', "sh", "-c", "{prefix}"]


@pytest.mark.parametrize(
    ("words", "values", "filled"),
    [
        (["-j{jobs}", "{prefix}/{{x}}", "${{HOME}}"], {"jobs": 4, "prefix": "/p"}, ["-j4", "/p/{x}", "${HOME}"]),
        (["cc", "{cflags}", "a.c"], FLAGS, ["cc", "-O2", "-g", "a.c"]),
        (["cc", "{cflags}", "a.c"], {"cflags": ""}, ["cc", "a.c"]),
        (["cc", "{cflags}"], {"cflags": "'-DA=b c'"}, ["cc", "-DA=b c"]),
        (["./configure", "CFLAGS={cflags}"], FLAGS, ["./configure", "CFLAGS=-O2 -g"]),
        (["sh", "-c", "x {prefix}", "{prefix}"], PATH, ["sh", "-c", f"x {shlex.quote('/a b')}", "/a b"]),
        (AGAIN, PATH, [*AGAIN[:-1], "/a b"]),  # an argument of the script
        (["cc", "-c", "{prefix}"], PATH, ["cc", "-c", "/a b"]),
        (["sh", "{prefix}", "-c", "{prefix}"], PATH, ["sh", "/a b", "-c", "/a b"]),
        (["bash", "--norc", "{prefix}"], PATH, ["bash", "--norc", "/a b"]),
    ],
)
def test_placeholders_in_command_are_filled(words: list[str], values: dict[str, str | int], filled: list[str]) -> None:
    """A placeholder of flags is split, paths are quoted only in a shell script, double braces become single braces."""
    assert fill_command(words, values) == filled


def test_values_are_filled_once_and_a_missing_value_is_reported() -> None:
    assert fill_text("{prefix}", {"prefix": "{jobs}", "jobs": 4}) == "{jobs}"
    with pytest.raises(
        RecipeError, match=r'"-s \{socket\}" of the recipe has the placeholder \{socket\}, which has no value here'
    ):
        fill_command(["client", "-s {socket}"], {"prefix": "/p"})


def printed(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "shell",
    [
        ["sh", "-c"], ["sh", "-ec"], ["bash", "-e", "-c"], ["/bin/bash", "-eo", "pipefail", "-c"],
        ["bash", "-o", "pipefail", "-ec"], ["bash", "--norc", "-c", "-u"], ["sh", "-c", "--"], ["dash", "+e", "-c"],
        ["env", "A=b", "sh", "-uc"], ["bash", "--rcfile", "/dev/null", "-c"],
        ["bash", "--init-file", "/dev/null", "--norc", "-ec"],
    ],
)  # fmt: skip
def test_path_in_a_shell_script_is_never_executed(shell: list[str]) -> None:
    for path in ("/a b/c", "/x; echo pwned", "/$(echo pwned) b", "/it's", "-n"):
        argv = fill_command([*shell, 'printf %s {prefix} "$1"', "{prefix}", "{prefix}"], {"prefix": path})
        assert printed(argv) == 2 * path


def test_flags_and_compiler_in_a_shell_script_are_split() -> None:
    flags = fill_command(["sh", "-c", "printf '[%s]' {cflags} \"X={cflags}\""], {"cflags": "-O2 -DA=;x"})
    assert printed(flags) == "[-O2][-DA=;x][X=-O2 '-DA=;x']"
    values = {"cc": "printf [%s]", "cxx": "printf [%s]", "cflags": "-O2"}
    assert fill_command(["{cc}", "a.c", "CC={cc}"], values) == ["printf", "[%s]", "a.c", "CC=printf [%s]"]
    script = 'X={cc} Y={cxx}\n({cc} a.c);{cxx} {cflags}; {{ {cc} "$X"; }}'
    assert printed(fill_command(["sh", "-c", script], values)) == "[a.c][-O2][printf [%s]]"
    with pytest.raises(RecipeError, match=r"has the placeholder \{cc\}, which has no value here"):
        fill_command(["sh", "-c", "x {cc}"], {"prefix": "/p"})
