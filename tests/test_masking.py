"""Passwords in URLs are masked in all texts that are printed or stored."""

import json
from pathlib import Path

import pytest

from perfbisect.cli.main import write_traceback
from perfbisect.core.domain.events import CandidateSkipped, Commit, Warned
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.errors import EnvironmentFailure
from perfbisect.lab.building.log_parser import BuildLog
from perfbisect.lab.workload import command
from perfbisect.masking import mask_credentials, mask_credentials_in_fields
from perfbisect.recipes.output_pattern import find_number
from perfbisect.repository.commits import _shortened


def test_only_passwords_in_urls_are_masked() -> None:
    """masked.txt has the cases. ccache requires a bar between the URL and a header."""
    secret, harmless = (
        Path(__file__).with_name("masked.txt").read_text().removeprefix("## masked\n").split("\n\n## harmless\n")
    )
    rows = [line.split(" → ") for line in secret.splitlines()] + [[line, line] for line in harmless.splitlines()]
    rows.append([f"https://aws:{'A' * 3000}s3cret@h/x", "https://***@h/x"])
    assert len(rows) > 40
    for url, shown in rows:
        assert mask_credentials(url) == mask_credentials(mask_credentials(url)) == shown
        assert mask_credentials(f"{url} and {url}") == f"{shown} and {shown}"


def test_hostile_text_is_masked_in_linear_time() -> None:
    """In quadratic time, the test would not end."""
    for text in ("://" * 30_000 + "@", "a://b@" * 20_000, "a" * 100_000 + "://@", "a://" + "@" * 90_000):
        mask_credentials(text)


def test_shortened_text_has_no_part_of_a_password() -> None:
    """A URL that is cut in the middle might not be recognised as a URL."""
    for before in range(0, 600, 7):
        line = f"error: {'x' * before} https://u:s3cret@h/x"
        log = BuildLog()
        log.read_line(line)
        quoted = [log.failure_line(), *log.tail, command.last_output_line(line), _shortened(line)]
        with pytest.raises(ValueError, match="not a number") as failure:
            find_number("$.n", json.dumps({"n": line.removeprefix("error: ")}))
        for text in (*quoted, str(failure.value), Commit("a" * 40, "", "", _shortened(line)).short_subject):
            assert "s3c" not in mask_credentials(text), before


def test_values_in_nested_fields_are_masked() -> None:
    url = "https://u:s3cret@h"
    event = CandidateSkipped(1, SkipFacts("a" * 40, "compile", f"error: {url}", "log", 1.0), "local")
    assert mask_credentials_in_fields(event).facts.reason == "error: https://***@h"
    plain = Warned("text", "advice")
    assert mask_credentials_in_fields(plain) is plain
    assert mask_credentials_in_fields({"a": [url, ("b", url)], "c": 1}) == {
        "a": ["https://***@h", ("b", "https://***@h")],
        "c": 1,
    }


def test_errors_contain_no_passwords() -> None:
    failure = EnvironmentFailure("cannot reach https://u:s3cret@h", "Try https://u:s3cret@h.")
    assert "s3cret" not in f"{failure} {failure.advice}"


def test_stored_traceback_contains_no_passwords(monkeypatch: pytest.MonkeyPatch, seal: Path) -> None:
    monkeypatch.setattr("sys.argv", ["bisect", "https://u:s3cret@h"])
    try:
        raise ZeroDivisionError("redis://u:s3cret@cache")
    except ZeroDivisionError:
        text = Path(write_traceback()).read_text()
    assert "ZeroDivisionError: redis://***@cache" in text
    assert "s3cret" not in text
