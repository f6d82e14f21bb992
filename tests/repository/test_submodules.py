from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.repository.discovery import open_repository
from perfbisect.repository.range import read_range
from perfbisect.repository.submodules import (
    LARGEST,
    ModuleEntry,
    Submodule,
    Unavailable,
    is_safe_name,
    module_entries,
    needed_submodules,
    patterns_below,
    refusal_reason,
    resolved_url,
)
from repos import Repo
from traps import FILE, LINK, OddTrees

USED = ["https://example.org/a.git", "ssh://git@example.org:22/a", "git@example.org:a/b.git", "host:a", "/srv/a", "file:///a",
        "https://user:secret@example.org/a", "[::1]:a", "ssh://[::1]/a"]  # fmt: skip
REFUSED = ["", "-oProxyCommand=x", "--upload-pack=x", "ext::sh -c x", "ext::x", "git://example.org/a", "http://example.org/a",
           "HTTPS://example.org/a", "ftp://h/a", "fd::3", "a/b", "~/a", "../a", "./a", "ssh://-oProxyCommand=x/a",
           "ssh://u@-o/a", "-h:a", "u@-h:a", "https://h/a\nb", "https://h/a b", "https://h/\x1b", "a::b", "https:/a"]  # fmt: skip


def test_unsafe_url_of_a_submodule_is_refused() -> None:
    assert [url for url in USED if refusal_reason(url)] == []
    assert [url for url in REFUSED if not refusal_reason(url)] == ["https:/a"]  # git, too, reads "https" as a host
    assert "https" in refusal_reason("ext::x")


@pytest.mark.tools
def test_relative_urls_are_resolved_as_git_does(tmp_path: Path) -> None:
    urls = ["../c", "./c", "../../c", "../c/", "./../c", "../c/../d", "/x", "https://x/y"]
    entries = "".join(f'[submodule "m{n}"]\n\tpath = m{n}\n\turl = {url}\n' for n, url in enumerate(urls))
    compared = 0
    for base in ("https://h/a/b.git", "git@h:a/b", "git@h:b", "/a/b/", "file:///a/b", "ssh://u@h:22/a/b"):
        repo = Repo(tmp_path / f"repo-{compared}")
        repo.write({".gitmodules": entries})
        repo("config", "remote.origin.url", base)
        for number, _ in enumerate(urls):
            repo("update-index", "--add", "--cacheinfo", f"160000,{'1234512345' * 4},m{number}")
        repo("submodule", "init")
        for number, url in enumerate(urls):
            if not (ours := resolved_url(url, base)).startswith("."):  # else the URL leads above the path of the base
                assert ours == repo("config", f"submodule.m{number}.url"), (base, url)
                compared += 1
    assert compared > 40
    assert all(refusal_reason(resolved_url("../c", base)) for base in ("https://h", "https://h/", "", "h:"))


@given(st.lists(st.sampled_from(["**", "*", "a", "a?", "b", "t*"]), min_size=1, max_size=4), st.data())
def test_patterns_below_a_folder_match_the_same_paths(pattern: list[str], data: st.DataObject) -> None:
    names = st.sampled_from(["a", "ab", "b", "tx"])
    folder = data.draw(st.lists(names, min_size=1, max_size=3))
    inner = data.draw(st.lists(names, min_size=1, max_size=3))
    if any(matches(pattern, folder[:end]) for end in range(1, len(folder) + 1)):
        return  # the folder itself is ignored, or a file is in its place
    rests = [rest.split("/") for rest in patterns_below(["/".join(pattern)], "/".join(folder))]
    assert any(matches(rest, inner) for rest in rests) == matches(pattern, folder + inner)


def matches(pattern: list[str], path: list[str]) -> bool:
    """Whether a glob matches a path, by definition."""
    if not pattern or not path:
        return not pattern and not path
    if pattern == ["**"]:
        return True
    if pattern[0] == "**":
        return any(matches(pattern[1:], path[start:]) for start in range(len(path)))
    return fnmatchcase(path[0], pattern[0]) and matches(pattern[1:], path[1:])


def test_submodule_name_with_a_parent_folder_is_unsafe() -> None:
    assert all(map(is_safe_name, ["a", "a/b", "storage/rocksdb", "..a", "a..", "."]))
    assert not any(map(is_safe_name, ["", "..", "../a", "a/..", "a/../b", "a\\..\\b"]))


@pytest.mark.tools
def test_submodules_of_a_commit_are_read_unless_ignored(tmp_path: Path) -> None:
    sub, repo = Repo(tmp_path / "sub"), Repo(tmp_path / "repo")
    one, two = sub.commit({"a": "1"}), sub.commit({"a": "2"})
    repo.add_module(str(sub.path), "storage/one", one)
    repo.add_module("../sub", "ü 'x'")
    repo("config", "--file", ".gitmodules", "submodule.storage/one.ignore", "all")
    repo("add", "-f", "storage/one")
    first, second = repo.commit({"code": "1"}), repo.move_module("storage/one", two)
    repo("checkout", "-q", two, cwd=repo.path / "storage/one")
    third = repo.commit({"doc/x": "1"})
    opened, ignore = open_repository(repo.path), ["doc/**", "storage/one/test/**", "**/*.md"]
    assert set(needed_submodules(opened, first, ignore)) == {
        Submodule("storage/one", one, ("test/**", "**/*.md")),
        Submodule("ü 'x'", two, ("**/*.md",)),
    }
    for left_out in ("storage/one", "storage/**", "storage", "storage/one/**", "**/one"):
        assert [each.path for each in needed_submodules(opened, second, [left_out])] == ["ü 'x'"], left_out
    entries = {"storage/one": ModuleEntry("storage/one", str(sub.path)), "ü 'x'": ModuleEntry("ü 'x'", "../sub")}
    assert module_entries(opened, first) == entries
    assert read_range(opened, first, third, ignore).candidates == (first, second), "only a submodule changes"
    assert (module_entries(open_repository(sub.path), two), needed_submodules(open_repository(sub.path), two, [])) == (
        {},
        (),
    )


@pytest.mark.tools
def test_invalid_gitmodules_file_is_an_error(git: Repo, tmp_path: Path) -> None:
    odd, opened, outside = OddTrees(git.path), open_repository(git.path), tmp_path / "outside"
    outside.write_text('[submodule "m"]\n\tpath = m\n\turl = /m\n')

    def tree(text: str, mode: bytes = FILE) -> str:
        return odd.tree((mode, b".gitmodules", odd.blob(text.encode())))

    unreadable = r"gitmodules cannot be read: git config failed in .*: error: bad config line 1"
    wrong = {tree(str(outside), LINK): "is not a file", tree("#" * (LARGEST + 1)): "bytes, but at most"}
    for made, sentence in (wrong | {tree("[submodule\n"): unreadable}).items():
        with pytest.raises(Unavailable, match=sentence):
            module_entries(opened, made)
    text = f'[include]\n\tpath = {outside}\n[submodule]\n\tpath\n[submodule "x"]\n\tpath\n\turl = a\n'
    assert "m" not in module_entries(opened, tree(text))
