"""What servers are told."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfbisect.errors import RecipeError
from perfbisect.lab.servers import GRAIN, configuration, identity, sizes
from perfbisect.recipes.builder import Build, Builder, Server
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.requested import ServerConfig

VALUES = sizes(HostEntry(), 1024, 2)


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    (tmp_path / "my.cnf").write_text("[mysqld]\nsize = {cache}M\n{settings}\n")
    server = Server(
        initialise=[["init"]],
        start=["serve"],
        ready=["ask"],
        config="my.cnf",
        settings={"a": True, "b": "{memory}M", "c": 0.5},
    )
    build = Build(compile=[["true"]], install=[["true"]], artifacts=["a"])
    return Builder(name="one", folder=str(tmp_path), summary="", driver="mysql", build=build, server=server)


def change(builder: Builder, **changes: object) -> Builder:
    assert builder.server
    return replace(builder, server=replace(builder.server, **changes))


def test_sizes_follow_the_host_and_not_its_kernel() -> None:
    assert sizes(HostEntry(), 31_900, 8) == {"memory": 31_744, "cache": 22_220, "cores": 8}
    assert sizes(HostEntry(), 31_800, 8) == sizes(HostEntry(), 31_900, 8)
    assert sizes(HostEntry(memory=2048, server_cpus="0-2,5"), 31_900, 8) == {"memory": 2048, "cache": 1433, "cores": 4}
    assert sizes(HostEntry(), 0, 1)["memory"] == GRAIN, "where the host does not tell"


def test_a_configuration_is_filled_in(builder: Builder) -> None:
    assert configuration(builder, VALUES) == "[mysqld]\nsize = 716M\na = on\nb = 1024M\nc = 0.5\n"
    assert configuration(change(builder, config=""), VALUES) == ""
    assert configuration(replace(builder, server=None), VALUES) == ""


def test_a_configuration_beside_the_recipe_is_its_end(builder: Builder) -> None:
    added = ServerConfig({"b": 2, "d": "x"}, "late = {memory}").applied(builder)
    expected = "[mysqld]\nsize = 716M\na = on\nb = 2\nc = 0.5\nd = x\n\nlate = 1024\n"
    assert configuration(added, VALUES) == expected
    assert identity(added, VALUES) != identity(builder, VALUES)
    by_text = ServerConfig(text="late = 1").applied(builder)
    assert identity(by_text, VALUES) != identity(builder, VALUES)


def test_what_tells_settings_apart(builder: Builder) -> None:
    told = identity(builder, VALUES)
    assert identity(builder, VALUES | {"port": 1}) == told, "not where it runs"
    assert identity(change(builder, ready_timeout=1.0, ready=["other"]), VALUES) == told
    assert identity(change(builder, settings={"a": False}), VALUES) != told
    assert identity(change(builder, settle=[["settle"]]), VALUES) != told
    assert identity(builder, VALUES | {"cache": 700}) != told
    assert identity(builder, VALUES | {"cores": 8}) == told, "it is not asked for"
    scripted = change(builder, start=["{recipe}/start"])
    before = identity(scripted, VALUES)
    Path(builder.folder, "start").write_text("#!/bin/sh\n")
    assert identity(scripted, VALUES) != before
    Path(builder.folder, "my.cnf").write_text("{settings}")
    assert identity(builder, VALUES) != told


def test_a_configuration_that_went_away_is_reported(builder: Builder) -> None:
    Path(builder.folder, "my.cnf").unlink()
    with pytest.raises(RecipeError, match=r'server.config` is "my.cnf", but .* has no such file'):
        configuration(builder, VALUES)
