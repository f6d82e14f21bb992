"""`bisect builders`, `workloads`, `hosts`, completion of their names, and recipes as they are shown."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.cli.main import bisect
from perfbisect.errors import RecipeError
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.toml import to_toml
from perfbisect.recipes.workload import Option, Workload, choose_workloads

Write = Callable[[str, str], Path]


SUITE = Path(__file__).with_name("suite.toml").read_text()


@pytest.fixture(autouse=True)
def recipes(write: Write, small: str) -> None:
    write("builders/small/builder.toml", small)
    write("builders/other/builder.toml", 'extends = "small"\nsummary = "another"\ndriver = "other"')
    write("workloads/tables/suite.toml", SUITE.replace("{driver}", "small"))
    write("workloads/rows/suite.toml", SUITE.replace("{driver}", "other"))
    write("hosts.toml", '[hosts.here]\nsummary = "this one"\n[hosts.there]\naddress = "me@there"')


def invoke(*args: str) -> Result:
    return CliRunner().invoke(bisect, args, catch_exceptions=False)


def lines(*args: str) -> list[list[str]]:
    heading, *rows = invoke(*args).output.splitlines()
    assert heading
    return [[word.strip() for word in line.split("  ") if word] for line in rows]


def test_recipes_are_listed() -> None:
    assert lines("builders") == [["other", "other", "another"], ["small", "small", "a small system"]]
    assert [line[0].strip() for line in lines("hosts")] == ["here", "there"]
    names = ["rows/select", "rows/scan", "tables/select", "tables/scan"]
    assert [line[0].strip() for line in lines("workloads")] == names
    assert [line[0] for line in lines("workloads", "--builder", "small")] == names[2:]
    assert invoke("workloads", "--show", "scan").output.count("[workloads.scan]") == 2, "one for each driver"
    assert invoke("workloads", "--show", "scan", "--builder", "other").output.count("[workloads.scan]") == 1
    with pytest.raises(RecipeError, match=r"no workload 'scn'. Did you mean 'scan'"):
        invoke("workloads", "--show", "scn")


def test_suite_of_several_drivers_is_listed_once(write: Write) -> None:
    write("workloads/rows/suite.toml", SUITE.replace('"{driver}"', '["other", "small"]'))
    words = [line.split()[:4] for line in invoke("workloads").output.splitlines()[1:3]]
    assert words == [["rows/select", "other,", "small", "point"], ["rows/scan", "other,", "small", "scan"]]
    assert "small" not in invoke("workloads", "--builder", "other").output
    assert tomllib.loads(invoke("workloads", "--show", "rows/scan").output)["driver"] == ["other", "small"]


def test_shown_recipe_can_be_used_as_a_recipe(write: Write) -> None:
    shown = invoke("builders", "--show", "other").output
    write("builders/again/builder.toml", shown)
    recipe = tomllib.loads(shown)
    assert tomllib.loads(invoke("builders", "--show", "again").output) == recipe
    assert recipe["build"]["compile"] == [["make"]] and "extends" not in recipe
    suite = invoke("workloads", "--show", "tables/scan").output
    assert tomllib.loads(suite)["workloads"]["scan"]["statement"] == "SELECT 2"
    write("workloads/again/suite.toml", suite)
    assert len(invoke("workloads").output.splitlines()) == 6
    assert tomllib.loads(invoke("hosts", "--show", "there").output)["hosts"]["there"]["address"] == "me@there"


def completions(*words: str) -> list[str]:
    shell = ShellComplete(bisect, {}, "bisect", "_BISECT_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_names_are_completed(write: Write) -> None:
    assert completions("builders", "--show", "s") == ["small"]
    assert completions("hosts", "--show", "") == ["here", "there"]
    assert completions("workloads", "--show", "s") == ["scan", "select"]
    assert completions("workloads", "--show", "tables/") == ["tables/scan", "tables/select"]
    assert completions("workloads", "--builder", "o") == ["other"]
    words = ("run", "--builder", "other", "--workload")
    assert completions(*words, "scan,p") == ["scan,point"]
    others = SUITE.replace("{driver}", "other").replace("workloads.scan", "workloads.sum")
    write("workloads/rows/suite.toml", others.replace('group = "scan"', 'group = "sums"'))
    assert completions(*words, "s") == ["select", "sum", "sums"], "names and groups"
    assert completions(*words, "select,su") == ["select,sum", "select,sums"]
    for name in ("builders/small/builder.toml", "workloads/rows/suite.toml", "hosts.toml"):
        write(name, "nonsense")
    for verb in ("builders", "workloads", "hosts"):
        assert completions(verb, "--show", "") == []


CHOSEN = {
    "scan,select": ["scan", "select"],
    "point, scan,point": ["select", "scan"],
    "tables": ["select", "scan"],
    "tables/scan,scan,tables": ["tables/scan", "select"],  # each once
}


def test_workloads_are_chosen_by_name_group_and_suite(write: Write) -> None:
    assert {given: [*choose_workloads(given, "small")] for given in CHOSEN} == CHOSEN
    with pytest.raises(RecipeError, match=r"no workload and no group 'pont' for small. Did you mean 'point'"):
        choose_workloads("pont", "small")
    write("workloads/twice/suite.toml", SUITE.replace("{driver}", "small"))
    assert [*choose_workloads("point", "small")] == ["tables/select", "twice/select"]


def test_recipe_without_commands_shows_build_systems_as_comments(write: Write) -> None:
    write("builders/served/builder.toml", 'summary = "a server"\ndriver = "x"\nprograms = ["bin/served"]')
    assert ["served", "x", "a server"] in lines("builders")
    shown = invoke("builders", "--show", "served").output
    assert tomllib.loads(shown)["programs"] == ["bin/served"]
    assert re.search(r"^# cmake, for a tree with CMakeLists\.txt$", shown, re.MULTILINE)
    assert re.search(
        r"^#     sh -c 'build the measured programs' .* cargo build --release --offline ", shown, re.MULTILINE
    )
    write("builders/served/builder.toml", 'summary = "a server"\ndriver = "x"\nbuild.system = "meson"')
    shown = invoke("builders", "--show", "served").output
    assert tomllib.loads(shown)["build"]["needs"] == ["meson", "ninja"]
    assert "--buildtype=plain" in shown
    assert "cmake" not in shown


def test_recipe_that_is_written_as_toml_can_be_read(write: Write, small: str) -> None:
    """Required keys are written even if they are empty."""
    full = Path(__file__).with_name("full.toml").read_text()
    bare = 'summary="s"\ndriver="d"\n[build]\ncompile=[]\ninstall=[]\nartifacts=[]'
    for text in (full, bare):
        write("builders/one/builder.toml", text)
        one = load_builder("one")
        write("builders/again/builder.toml", to_toml(one))
        assert msgspec.structs.replace(load_builder("again"), name=one.name, folder=one.folder) == one


TEXT = st.text(st.characters(codec="utf-8")) | st.sampled_from(["a\r\nb", "\r", "\n"])


@given(TEXT.filter(bool), st.dictionaries(TEXT, TEXT | st.integers(-(2**60), 2**60) | st.booleans(), min_size=1))
def test_any_text_is_unchanged_by_toml(text: str, options: dict[str, Option]) -> None:
    shown = tomllib.loads(to_toml(Workload(summary=text, group=text, args=options)))
    assert (shown["summary"], shown["args"]) == (text, options)
