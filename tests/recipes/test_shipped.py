"""The recipes that come with the program, and the guide to writing more."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.recipes import builder
from perfbisect.recipes.builder import SHARED
from perfbisect.recipes.builder_reader import load_builder, load_builders
from perfbisect.recipes.inventory import leases_several_at_once, load_host, load_hosts, load_lease
from perfbisect.recipes.placeholders import fill_command
from perfbisect.recipes.workload import load_workloads, read_suite
from perfbisect.repository.git import pathspecs_except

ROOT = Path(__file__).parents[2]
GUIDE, HOSTS = ((ROOT / "docs" / page).read_text() for page in ("recipes.md", "hosts.md"))


@pytest.fixture(autouse=True)
def sealed() -> None:
    """Overrides the fixture that hides the shipped recipes."""


def test_every_shipped_recipe_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    builders, served = load_builders(), {each.driver for each in load_workloads()}
    assert {each.name for each in builders} == {path.parent.name for path in ROOT.glob("builders/*/builder.toml")}
    assert served <= {each.driver for each in builders}
    without = {each.name for each in builders if each.driver not in served}
    assert without == {"command"}  # its workload comes from the command line
    assert [host.name for host in load_hosts()] == ["local"]


def test_ignored_paths_of_sqlite_are_those_not_built_or_read(git: Callable[..., str], tmp_path: Path) -> None:
    table = re.sub("#.*\n", "", Path(__file__).with_name("sqlite.txt").read_text())
    read, unread = (part.split() for part in table.split("\n\n"))
    for path in (*read, *unread):
        (place := tmp_path / "repo" / path).parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    git("add", "-A")
    assert set(git("ls-files", "--", *pathspecs_except(load_builder("sqlite").ignore)).split()) == set(read)


@pytest.mark.parametrize("name", ["mysql", "percona"])
def test_version_of_boost_is_read_from_the_tree(name: str) -> None:
    recipe = load_builder(name)
    boost = recipe.archives["boost"]
    assert recipe.build
    assert "-DWITH_BOOST={archives.boost}" in recipe.build.options
    named = re.search(boost.pattern, '# comment\nSET(BOOST_PACKAGE_NAME "boost_1_73_0")\nSET(BOOST_TARBALL "x")\n')
    assert named
    assert named[1].replace("_", ".") in boost.sha256
    assert len(set(boost.sha256.values())) == len(boost.sha256) == 13


def test_plugins_that_a_server_loads_are_built() -> None:
    """No program links a plugin, so the plugin needs a target, and then the programs need targets, too."""
    for recipe in load_builders():
        if plugin := recipe.server and recipe.server.settings.get("plugin_load_add"):
            needed = {f"{plugin}".removeprefix("ha_"), *(path.rpartition("/")[2] for path in recipe.programs)}
            assert recipe.build
            assert needed <= {*recipe.build.targets}, recipe.name


def test_guide_lists_all_variants_and_all_placeholders_with_their_places() -> None:
    parts = ("version", "installed", "build", "server", "command")
    known: dict[str, set[str]] = {part: set() for part in parts}
    for words, places in re.findall(r"^\| (`\{.*?) \| .* \| ([a-z, ]+) \|$", GUIDE, re.MULTILINE):
        for place in places.split(", "):
            known[place] |= set(re.findall(r"\{(\w+)\}", words))
    assert known == {part: set(getattr(builder, f"{part.upper()}_PLACEHOLDERS")) for part in parts}
    for name, settings in SHARED.items():
        assert re.search(rf"^\| `{name}`.*`{settings['cflags']}`", GUIDE, re.MULTILINE), name


def test_examples_of_the_guide_are_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(# .*?perfbisect/(.*?)\n.*?)```", GUIDE + HOSTS, re.DOTALL)
    for text, name in blocks:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert load_builder("kv", tmp_path / "builders").driver == "kv"
    assert load_host("dell32", tmp_path / "hosts.toml").server_cpus == "0-23"
    workloads = {name: each for suite in ("kv", "joins")
                 for name, each in read_suite(tmp_path / f"workloads/{suite}/suite.toml").workloads.items()}  # fmt: skip
    found = {name: (each.metric, each.time) for name, each in workloads.items()}
    assert found == {"readrandom": ("rate", 10.0), "left-join": ("qps", 5.0)}


def test_features_of_a_lease_never_reach_a_shell_unquoted() -> None:
    slurm = load_lease("slurm")
    assert leases_several_at_once(slurm)
    asked = {"job": "j", "user": "me", "features": "a&b|$(x)", "count": "2", "node": "", "minutes": "", "every": "60"}
    assert "features='a&b|$(x)'" in fill_command(slurm.acquire, asked)[2]
