"""Leases of hosts.toml, and the names of leased hosts."""

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from perfbisect.cli.options.completion import host_name
from perfbisect.errors import RecipeError, UsageError
from perfbisect.recipes.inventory import (
    LeaseName,
    expanded_names,
    load_host,
    load_lease,
    load_leases,
    parse_lease_name,
    reached,
)

Write = Callable[[str, str], Path]

POOL = """
[leases.pool]
acquire = ["lend", "{job}"]
release = ["back", "{job}"]
[leases.pool.host]
root = "/data/{address}"
jobs = 3
"""
VALUES = {"job": "j1", "user": "me", "address": "n7", "lease": "12"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("slurm:quiet", LeaseName("slurm", "quiet")),
        ("slurm:quiet*8", LeaseName("slurm", "quiet", 8)),
        ("slurm:quiet/2", LeaseName("slurm", "quiet")),
        ("slurm:", LeaseName("slurm", "")),
        ("slurm:quiet&big|old", LeaseName("slurm", "quiet&big|old")),
        ("local", None),
        ("slurm:a b", None),
        ("slurm:$(x)", None),
    ],
)
def test_what_a_name_says(name: str, said: LeaseName | None) -> None:
    assert parse_lease_name(name) == said


def test_several_at_once_have_names_of_their_own() -> None:
    assert expanded_names(["local", "s:a*2", "s:b"]) == ("local", "s:a/1", "s:a/2", "s:b")
    for wrong in ("s:a*0", "s:a*1001"):
        with pytest.raises(UsageError, match="1 to 1000 can be leased"):
            expanded_names([wrong])


def test_a_leased_host_has_what_its_lease_says_of_all(write: Write) -> None:
    write("hosts.toml", POOL)
    entry = load_host("pool:quiet/2")
    assert (entry.name, entry.kind, entry.jobs, entry.leased, entry.is_here) == (
        "pool:quiet/2", "pool:quiet", 3, True, False,
    )  # fmt: skip
    there = reached(entry, VALUES)
    assert (there.address, there.root, there.leased) == ("n7", "/data/n7", False)
    with pytest.raises(UsageError, match="root folder"):
        reached(entry, VALUES | {"address": "$(x)"})
    with pytest.raises(RecipeError, match=r"no lease 'pol'. Did you mean 'pool'"):
        load_host("pol:quiet")


def test_a_lease_extends_another_also_the_shipped_one_of_its_name(write: Write) -> None:
    write("hosts.toml", POOL + '[leases.own]\nextends = "pool"\n[leases.own.host]\njobs = 9\n')
    write("mine.toml", '[leases.pool]\nextends = "pool"\n[leases.pool.host]\nroot = "/scratch/{user}"\n')
    own = load_lease("own")
    assert (own.name, own.host.jobs, own.host.root, own.acquire) == ("own", 9, "/data/{address}", ["lend", "{job}"])
    pool = load_lease("pool", "mine.toml")
    assert (pool.host.root, pool.host.jobs, pool.acquire) == ("/scratch/{user}", 3, ["lend", "{job}"])
    assert pool.file.endswith("mine.toml")
    assert load_lease("pool").host.root == "/data/{address}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[leases.a]\nacquire = ["x"]', r"`leases.a.release` is missing"),
        ('[leases.a]\nacquire = ["{lease}"]\nrelease = ["x"]', r"`leases.a.acquire\[0\]` has the unknown placeholder"),
        ('[leases.a]\nacquire = ["x"]\nrelease = ["{address}"]', r"`leases.a.release\[0\]` has the unknown placeholder"),
        ('[leases.a]\nextends = "b"', r"`leases.a.extends` is \"b\", and there is no such lease"),
        ('[leases.a]\nextends = "b"\n[leases.b]\nextends = "a"', r"no such lease to extend"),
        ('[leases.a]\nextends = "a"', r"no such lease to extend"),
        ('[leases.a]\nevery = 0', r"`leases.a.every` is the number 0, but must be a number of seconds"),
        ('[leases.a.host]\nroot = "/a b"', r"`leases.a.host.root` is"),
        ('[leases.a.host]\nleased = true', r"`leases.a.host.leased` is an unknown key"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(write: Write, text: str, sentence: str) -> None:
    write("hosts.toml", text)
    with pytest.raises(RecipeError, match=sentence):
        load_leases()


def test_a_lease_completes_as_far_as_its_colon(write: Write) -> None:
    write("hosts.toml", POOL + "[hosts.post]\n")
    context = click.Context(click.Command("run"))
    assert host_name(context, click.Option(["--host"]), "po") == ["pool:", "post"]


def test_a_lease_given_as_a_host_is_told_how_to_write_it(write: Write) -> None:
    write("hosts.toml", POOL)
    with pytest.raises(RecipeError, match="'pool' is not a host, but a lease") as told:
        load_host("pool")
    assert "pool:FEATURES" in told.value.advice
