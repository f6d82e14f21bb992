"""Passwords in URLs are in nothing that is printed or kept."""

import json
import shlex
from pathlib import Path

import pytest

from perfbisect.cli.main import keep_traceback
from perfbisect.core.domain.events import CandidateSkipped, Commit, Warned
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.errors import EnvironmentFailure
from perfbisect.lab.build.log_parser import BuildLog
from perfbisect.lab.workload import command
from perfbisect.masking import masked, masked_fields
from perfbisect.recipes.output_pattern import find_number
from perfbisect.repository.commits import _cut

URLS = {
    "redis://user:s3cret@cache:6379": "redis://***@cache:6379",
    "redis://:s3cret@cache": "redis://***@cache",
    "https://s3cret@example.org/x.git": "https://***@example.org/x.git",
    "https://s3cret:x-oauth-basic@example.org/x": "https://***@example.org/x",
    "https://x-access-token:s3cret@example.org/x": "https://***@example.org/x",
    "HTTPS://u:s3cret@example.org": "HTTPS://***@example.org",
    "git+https://u:s3cret@example.org": "git+https://***@example.org",
    "ssh://git:s3cret@example.org/x": "ssh://***@example.org/x",
    "redis://u:p@s3cret@cache/0": "redis://***@cache/0",
    "redis://u:p/s3cret@cache": "redis://***@cache",
    "http://u:s3cret@[::1]:80/a": "http://***@[::1]:80/a",
    "redis://u:s3cret@one,http://v:s3cret@two": "redis://***@one,http://***@two",
    "redis://one,http://v:s3cret@two": "redis://one,http://***@two",
    "http://cache/x?next=http://u:s3cret@two": "http://cache/x?next=http://***@two",
    "http://cache|bearer-token=s3cret|layout=flat": "http://cache|bearer-token=***|layout=flat",
    "http://cache @header=s3cret": "http://cache @header=s3cret",  # ccache wants a bar, or it is another word
    "https://example.org/x?access_token=s3cret&y=1": "https://example.org/x?access_token=***&y=1",
    "fatal: Authentication failed for 'https://u:s3cret@h/x/'": "fatal: Authentication failed for 'https://***@h/x/'",
    "https://u:s%20cret@h": "https://***@h",
    "https://u:sécrét@h": "https://***@h",
    f"https://aws:{'A' * 3000}s3cret@h/x": "https://***@h/x",
    r"https:\/\/u:s3cret@h\/x": r"https:\/\/***@h\/x",
    "postgresql://u:'s3'cret'@h/d": "postgresql://***@h/d",
    "'postgresql://u:s3cret'@h/d'": "'postgresql://***@h/d'",
    shlex.quote("postgresql://u:a's3cret@h/d"): "'postgresql://***@h/d'",
    json.dumps(shlex.quote("postgresql://u:a's3cret@h/d")): "\"'postgresql://***@h/d'\"",
    "postgresql://u:!$&'()*+,;=-._~%40:@s3cret@h/d": "postgresql://***@h/d",
    "postgresql://h/d?user=u&password=a'!$()*+,;=:@/?%40s3cret": "postgresql://h/d?user=u&password=***",
    "'postgresql://h/d?password=a's3cret'": "'postgresql://h/d?password=***'",
    shlex.quote("postgresql://h/d?password=a's3cret"): "'postgresql://h/d?password=***'",
    "http://h/d?password=s3cret;user=u": "http://h/d?password=***;user=u",
    "_https://u:s3cret@h": "_https://***@h",
    "https:///u:s3cret@h": "https:///***@h",
    "https://h/done#access_token=s3cret&a=1": "https://h/done#access_token=***&a=1",
    "https://h/x?a=1&amp;token=s3cret": "https://h/x?a=1&amp;token=***",
    "https://h/x?a=1&sig=s3cret": "https://h/x?a=1&sig=***",
    "https://h/x?X-Amz-Signature=s3cret": "https://h/x?X-Amz-Signature=***",
}
HARMLESS = (
    "https://example.org/a@b", "http://h:8080/a@b", "ssh://git@example.org/x", "git@example.org:x.git", "x@y.org",
    "see http://h:80 and mail x@y.org", "http://[::1]:80/a@b", "file:///a/b@c", "a://b", "://@", "https://***@h",
    "key=value", "http://h/?page=2",
)  # fmt: skip


def test_passwords_in_urls_are_masked_and_nothing_else() -> None:
    for url, shown in (URLS | dict(zip(HARMLESS, HARMLESS, strict=True))).items():
        assert masked(url) == masked(masked(url)) == shown
        assert masked(f"{url} and {url}") == f"{shown} and {shown}"


def test_hostile_text_is_masked_in_linear_time() -> None:
    """One that takes the square of its length would not end."""
    for text in ("://" * 30_000 + "@", "a://b@" * 20_000, "a" * 100_000 + "://@", "a://" + "@" * 90_000):
        masked(text)


def test_what_is_cut_has_no_part_of_a_password() -> None:
    """Half of a URL would not be known as one."""
    for before in range(0, 600, 7):
        line = f"error: {'x' * before} https://u:s3cret@h/x"
        log = BuildLog()
        log.read(line)
        quoted = [log.why(), *log.tail, command.last(line), _cut(line)]
        with pytest.raises(ValueError, match="not a number") as failure:
            find_number("$.n", json.dumps({"n": line.removeprefix("error: ")}))
        for text in (*quoted, str(failure.value), Commit("a" * 40, "", "", _cut(line)).title):
            assert "s3c" not in masked(text), before


def test_values_are_masked_inside() -> None:
    url = "https://u:s3cret@h"
    event = CandidateSkipped(1, SkipFacts("a" * 40, "compile", f"error: {url}", "log", 1.0), "local")
    assert masked_fields(event).facts.reason == "error: https://***@h"
    plain = Warned("text", "advice")
    assert masked_fields(plain) is plain
    assert masked_fields({"a": [url, ("b", url)], "c": 1}) == {"a": ["https://***@h", ("b", "https://***@h")], "c": 1}


def test_errors_are_born_without_passwords() -> None:
    failure = EnvironmentFailure("cannot reach https://u:s3cret@h", "Try https://u:s3cret@h.")
    assert "s3cret" not in f"{failure} {failure.advice}"


def test_a_traceback_that_is_kept_has_none(monkeypatch: pytest.MonkeyPatch, seal: Path) -> None:
    monkeypatch.setattr("sys.argv", ["bisect", "https://u:s3cret@h"])
    try:
        raise ZeroDivisionError("redis://u:s3cret@cache")
    except ZeroDivisionError:
        text = Path(keep_traceback()).read_text()
    assert "ZeroDivisionError: redis://***@cache" in text
    assert "s3cret" not in text
