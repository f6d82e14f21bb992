"""The words that name builds in a comparison: revisions with a variant and a configuration, and folders of binaries."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.domain.settings import Settings, TrialBuild
from perfbisect.core.stats.drops import huntable_builds_by_variant
from perfbisect.errors import PerfBisectError
from perfbisect.hunt.trials.builds import parse_build_argument, read_builds
from perfbisect.recipes.builder import Build, Builder, Config, Server, Variant
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.requested import ServerConfig, config_from_text, load_config
from repos import Repo

NAMES = st.text("ab@+{}1/.^~", min_size=1, max_size=8)


@given(NAMES, st.sets(NAMES), st.sets(NAMES), st.sets(NAMES))
def test_word_is_split_at_known_names(word: str, variants: set[str], configs: set[str], revisions: set[str]) -> None:
    found = parse_build_argument(word, variants, configs.__contains__, revisions.__contains__)
    assert found.revision
    assert found.variant in variants | {""}
    assert found.config in configs | {""}
    written = found.revision + (found.variant and f"@{found.variant}") + (found.config and f"+{found.config}")
    assert written == word
    if word in revisions or not set("@+") & set(word):
        assert found == (word, "", "")


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    (tmp_path / "server.conf").write_text("data = {data}\n{settings}\n")
    run = [["true"]]
    server = Server(
        initialise=run, start=["true"], ready=["true"], config="server.conf", reserved=["data_folder", "!include"]
    )
    return Builder(
        name="one", folder=str(tmp_path), summary="", driver="mysql", build=Build(compile=run), server=server,
        variants={"o2nofp": Variant(), "lto": Variant()}, configs={"small": Config(settings={"cache": 1})},
    )  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path, git: Repo) -> Settings:
    """Settings for a repository with two commits, and with tags whose names contain @ and +."""
    for title, tags in (("0", ("v1", "v1+2", "v1@lto@x")), ("1", ("v2", "v2@lto"))):
        git.commit(title=title)
        for tag in tags:
            git("tag", tag)
    return Settings("", "", str(git.path), "one", "", "local", metric="qps")


def read(settings: Settings, builder: Builder, *words: str) -> list[TrialBuild]:
    return read_builds(words, settings, builder)[1]


def test_build_word_gives_revision_variant_and_configuration(settings: Settings, builder: Builder, git: Repo) -> None:
    file = git.path.parent / "my+big@home.cnf"
    file.write_text("cache = 2\n")
    first, second = git("rev-parse", "v1"), git("rev-parse", "v2")
    expected = {
        f"v1@lto+{file}": (first, "lto", str(file)),
        "v1": (first, "", ""),
        "v1+small": (first, "", "small"),
        "v1+2": (first, "", ""),
        "v1+2@lto": (first, "lto", ""),
        "v1@lto@x": (first, "", ""),
        "v2@lto": (second, "", ""),
        "HEAD@{0}@lto": (second, "lto", ""),
        "HEAD@{0}^{commit}~1@lto+small": (first, "lto", "small"),
        "@@lto": (second, "lto", ""),
    }
    found = read(settings, builder, *expected)
    assert {each.name: (each.commit, each.variant, each.config) for each in found} == expected
    assert [bool(each.config_hash) for each in found] == [bool(each.config) for each in found]
    file.write_text("cache = 3\n")
    assert read(settings, builder, *expected)[0].config_hash != found[0].config_hash, "a changed file is another build"


@pytest.mark.parametrize(("own", "other"), [("", "lto"), ("lto", "o2nofp")])
def test_usual_variant_in_a_build_word_is_dropped(settings: Settings, builder: Builder, own: str, other: str) -> None:
    """Hunts can start between builds without a variant of their own. The same build twice is refused."""
    settings, same = replace(settings, variant=own), own or builder.variant
    found = read(settings, builder, "v1", f"v2@{same}", f"v1@{other}")
    assert [each.variant for each in found] == ["", "", other]
    assert huntable_builds_by_variant(found) == [[0, 1], [2]]
    with pytest.raises(PerfBisectError, match=f"v1 and v1@{same} are the same build"):
        read(settings, builder, "v1", "v2", f"v1@{same}")


WRONG = {
    "v1@lot": "There is no variant 'lot' of builder one. Did you mean 'lto'?",
    "v1+smal": "'smal' is neither a configuration of builder one nor a file. Did you mean 'small'?",
    "HEAD@{0}x": "'HEAD@{0}x' is no revision",
    "v3": "'v3' is neither a release nor a revision",
    "two=/+smal": "'smal' is neither a configuration",
    "two=/no/such+small": "There is no folder /no/such for build two",
}


def test_error_quotes_the_unknown_name_in_a_build_word(settings: Settings, builder: Builder) -> None:
    for word, reason in WRONG.items():
        with pytest.raises(PerfBisectError) as raised:
            read(settings, builder, "v1", word)
        assert reason in str(raised.value), word


def test_build_words_name_files_and_folders(
    settings: Settings, builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration file is stored with its absolute path. The name of a folder of binaries may contain +."""
    monkeypatch.chdir(tmp_path)
    Path("my.cnf").write_text("cache = 2\n")
    folder = tmp_path / "opt+small"
    folder.mkdir()
    words = ["v1+my.cnf", "v1+small", f"a={folder}", f"b={folder}+small", f"c={tmp_path}+small"]
    found = read(settings, builder, *words)
    assert found[0].name == "v1+my.cnf"
    assert [each.config for each in found] == [str(tmp_path / "my.cnf"), "small", "", "small", "small"]
    assert [each.path for each in found[2:]] == [str(folder), str(folder), str(tmp_path)]
    with pytest.raises(PerfBisectError, match="has no configuration file of a server"):
        load_config(Builder(name="two", summary="", driver="x", server=None), "small")


def test_server_configuration_of_the_user_cannot_move_data(builder: Builder) -> None:
    assert builder.server
    given = "[s]\nCache={x}\ndata-folder = /srv\n # data_folder\n!include /etc/x\n"
    found = config_from_text(given, builder.server.reserved)
    assert found.left_out == ("data-folder", "!include")
    assert found.text == "[s]\nCache={{x}}\n # data_folder"
    assert ServerConfig().applied_to(builder) is builder
    assert config_from_text("\ufeffdata_folder = /srv\nx = 1", builder.server.reserved).text == "x = 1"
    own = config_from_text("log-bin\nlog_bin = ON # not /x\nlog_bin = /srv/x\nLOG_BIN=../x", ["log_bin=/"])
    assert own.text == "log-bin\nlog_bin = ON # not /x"


RESERVED = {
    "mysql": "innodb_data_home_dir = /srv; loose-innodb_log_group_home_dir=/srv; innodb-undo-directory=/srv",
    "mariadb": "aria_log_dir_path = /srv; log-bin = /srv/bin; relay_log=/srv/relay; wsrep_on = ON",
    "myrocks": "rocksdb_wal_dir = /srv; rocksdb_datadir=/srv",
    "postgres": "archive_command = 'cp %p /srv/%f'; archive_library 'x'; restore_command='cp /srv/%f %p'",
}


@pytest.mark.parametrize("builder", RESERVED)
def test_shipped_builders_reserve_settings_of_data_folders(builder: str) -> None:
    server, reserved = load_builder(builder).server, RESERVED[builder].split("; ")
    assert server
    found = config_from_text("\n".join(["work_mem = 1", *reserved]), server.reserved)
    assert (found.text, len(found.left_out)) == ("work_mem = 1", len(reserved))
