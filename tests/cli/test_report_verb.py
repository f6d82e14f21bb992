"""`bisect report`: the files that it writes."""

import json
import shlex
from collections.abc import Callable
from contextlib import closing
from html import escape
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.store.history import History
from program import HUNT, Ended, exits, run


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A history with the sample hunt, and one that was only begun."""
    path = tmp_path / "history.db"
    with closing(History.open(path)) as history:
        sample.write(history)
        sample.begin(history, at=sample.BEGAN + 3600)
    return path


@pytest.fixture
def report(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """``report(*args)`` on that history, in an empty folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return lambda *args: run("report", *args, "--history", str(written))


def test_a_page_is_written_where_it_is_said(report: Callable[..., Ended], tmp_path: Path) -> None:
    assert report("1") == (0, "hunt-1.html\n", "")
    assert "The culprit is 6da84d17ef" in Path("hunt-1.html").read_text()
    assert report("1", "-o", "a/b/why.html") == (0, "a/b/why.html\n", "")
    assert Path("a/b/why.html").read_text() == Path("hunt-1.html").read_text()
    assert report()[1] == "hunt-2.html\n"  # the latest
    assert "There is no verdict yet." in Path("hunt-2.html").read_text()


def test_what_cannot_be_written_is_named(report: Callable[..., Ended]) -> None:
    assert report("1", "-o", "/dev/full") == (4, "", "Error: /dev/full: No space left on device\n")


def test_all_of_a_history_is_written_with_an_index(report: Callable[..., Ended]) -> None:
    status, out, err = report("--all", "pages")
    assert (status, out, err) == (0, "pages/index.html\n", "")
    assert sorted(path.name for path in Path("pages").iterdir()) == ["hunt-1.html", "hunt-2.html", "index.html"]
    index = Path("pages/index.html").read_text()
    assert 'href="hunt-1.html"' in index
    assert "found 6da84d17ef" in index
    assert 'href="index.html"' in Path("pages/hunt-1.html").read_text()


def test_markdown_is_that_of_show(report: Callable[..., Ended], written: Path) -> None:
    status, out, err = report("1", "--markdown")
    assert (status, err) == (0, "")
    assert out == run("show", "1", "--markdown", "--history", str(written))[1]
    assert not Path("hunt-1.html").exists()


def test_a_damaged_hunt_is_named_and_the_others_are_written(report: Callable[..., Ended], written: Path) -> None:
    with closing(History.open(written)) as history:
        history.connection.execute("update events set body = '{' where session_id = 2 or (session_id = 1 and id = 3)")
        history.connection.commit()
    status, _, err = report("--all", "pages")
    assert status == 0
    assert "No page of 1:" in err
    assert sorted(path.name for path in Path("pages").iterdir()) == ["hunt-2.html", "index.html"]
    assert 'href="hunt-1.html"' not in Path("pages/index.html").read_text()


def test_mistakes_are_named(report: Callable[..., Ended]) -> None:
    for words, part in (
        ("1 --all x", "--all writes everything"),
        ("1 --markdown -o x", "Choose one of"),
        ("1 --speedscope x.json", "has no profiles"),
        ("1 --folded x", "has no profiles"),
        ("c1 --folded x", "c1 has no profiles"),
        ("99", "no hunt 99"),
        ("c9", "no c9"),
    ):
        status, out, err = report(*words.split())
        assert (status, out) == (3, "")
        assert part in err
        assert not list(Path().iterdir())


def test_json_of_speedscope_is_what_its_schema_asks() -> None:
    from explained_hunt import PROFILES
    from perfbisect.report.profiles import folded, speedscope

    made = json.loads(speedscope(PROFILES, "hunt 1"))
    names = [frame["name"] for frame in made["shared"]["frames"]]
    assert len(names) == len(set(names))
    culprit, parent = made["profiles"]
    assert culprit["type"] == parent["type"] == "sampled"
    assert culprit["endValue"] == pytest.approx(sum(PROFILES.culprit.values()))
    assert len(culprit["samples"]) == len(culprit["weights"]) == len(PROFILES.culprit)
    stacks = {";".join(names[number] for number in sample) for sample in parent["samples"]}
    assert stacks == set(PROFILES.parent)
    lines = folded(PROFILES.parent).splitlines()
    assert "engine;main;run_workload 600000" in lines
    assert len(lines) == len(PROFILES.parent)


@pytest.mark.tools
def test_every_form_has_the_link_and_what_a_mail_needs(ends: tuple[str, str], git: Callable[..., str]) -> None:
    """The subject is made of what a shell, a terminal, Markdown and HTML read."""
    odd = "Read `rm x` $(rm y); @user <b>'\"|\\\x1b]0;\x07 \u202e```"
    git("commit", "--amend", "-qm", odd)
    git("remote", "add", "origin", "git@gitlab.gnome.org:GNOME/kv.git")
    culprit = git("rev-parse", "HEAD")
    exits(0, "run", ends[0], culprit, *HUNT, "--threads", "2", "--min-effect", "3%", "--max-time", "1h")
    [case] = json.loads(exits(0, "show", "--json"))["cases"]
    link, issue = f"https://gitlab.gnome.org/GNOME/kv/-/commit/{culprit}", case["issue"]
    assert case["link"] == link and link in issue[1]
    assert [line.partition(": ")[0] for line in issue] == ["rate", "Commit", "Effect", "Sure", "Why", "Reproduce"]
    exits(0, "report", "-o", "page.html")
    shown, markdown, page = exits(0, "show"), exits(0, "show", "--markdown"), Path("page.html").read_text()
    assert f"\n  link     {link}\n" in shown and f"\n- link: {link}\n" in markdown and f'<a href="{link}">' in page
    assert "".join(f"  {line}\n" for line in issue) in shown
    assert "\n````\n" + "".join(f"{line}\n" for line in issue) + "````" in markdown
    assert str(escape("\n".join(issue))).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page
    words = shlex.split(issue[-1].removeprefix("Reproduce: "))
    assert words[:4] == ["bisect", "compare", ends[0][:10], culprit[:10]] and "--max-time" not in words
    assert f"2 builds: {words[2]}, {words[3]}" in exits(0, *words[1:], "--dry-run")
    git("remote", "set-url", "origin", "/srv/kv.git")
    assert "gitlab" not in exits(0, "show") and culprit in exits(0, "show")
