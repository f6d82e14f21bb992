"""What the user shares with others."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.errors import RecipeError
from perfbisect.recipes.configuration import load_configuration
from perfbisect.recipes.inventory import load_host

Write = Callable[[str, str], Path]


def test_without_a_file_nothing_is_shared() -> None:
    shared = load_configuration().shared
    assert (shared.builds, shared.secret(), shared.ccache) == (None, b"", "")


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ('builds = "builds"', '`shared.builds` is "builds", but must be an absolute path, or an address'),
        ('builds = "./builds"', "must be an absolute path"),
        ('builds = "s3://two words"', "must be an absolute path"),
        ('ccache = "cache:6379"', "must be an address"),
        ('store = "/srv"', "`shared.store` is an unknown key"),
    ],
)
def test_mistakes_are_named(write: Write, line: str, mistake: str) -> None:
    write("config.toml", f"[shared]\n{line}\n")
    with pytest.raises(RecipeError) as caught:
        load_configuration()
    assert mistake in str(caught.value)


@pytest.mark.parametrize(
    ("text", "mode", "mistake"),
    [
        ("0123456789abcdef\n", 0o600, ""),
        ("0123456789abcdef\n", 0o640, "can be read by other users"),
        ("0123456789abcde\n", 0o600, "has fewer than 16 characters"),
        (None, 0, "cannot be read: No such file"),
    ],
)
def test_the_key_is_a_secret(write: Write, seal: Path, text: str | None, mode: int, mistake: str) -> None:
    write("config.toml", '[shared]\nbuilds = "/srv/builds"\nkey_file = "~/key"\n')
    if text is not None:
        (seal / "key").write_text(text)
        (seal / "key").chmod(mode)
    shared = load_configuration().shared
    if not mistake:
        assert shared.secret() == b"0123456789abcdef"
        return
    with pytest.raises(RecipeError, match=mistake):
        shared.secret()


def test_the_compilers_cache_is_that_of_hosts_that_have_none(write: Write) -> None:
    write("config.toml", '[shared]\nccache = "redis://cache:6379"\n')
    hosts = write(
        "hosts.toml", '[hosts.a]\n[hosts.b]\nccache_remote = "http://own"\n[hosts.c]\nccache_remote = "none"\n'
    )
    found = [load_host(name, hosts).ccache_remote for name in "abc"]
    assert found == ["redis://cache:6379", "http://own", "none"]
