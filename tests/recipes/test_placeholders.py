import shlex
import subprocess

import pytest

from perfbisect.errors import RecipeError
from perfbisect.recipes.placeholders import fill, fill_text


def test_words_are_filled_and_braces_are_kept() -> None:
    assert fill(["make", "-j{jobs}", "{prefix}/{{x}}", "${{HOME}}"], {"jobs": 4, "prefix": "/p"}) == [
        "make",
        "-j4",
        "/p/{x}",
        "${HOME}",
    ]


def test_values_are_not_filled_again() -> None:
    assert fill_text("{prefix}", {"prefix": "{jobs}", "jobs": 4}) == "{jobs}"


def test_a_word_without_value_is_named() -> None:
    with pytest.raises(RecipeError, match=r'"-s \{socket\}" has \{socket\}, which has no value here'):
        fill(["client", "-s {socket}"], {"prefix": "/p"})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("-O2 -g", ["cc", "-O2", "-g", "a.c"]), ("", ["cc", "a.c"]), ("'-DA=b c'", ["cc", "-DA=b c", "a.c"])],
)
def test_flags_alone_become_arguments(flags: str, expected: list[str]) -> None:
    assert fill(["cc", "{cflags}", "a.c"], {"cflags": flags}) == expected


def test_flags_within_an_argument_stay_one() -> None:
    assert fill(["./configure", "CFLAGS={cflags}"], {"cflags": "-O2 -g"}) == ["./configure", "CFLAGS=-O2 -g"]


@pytest.mark.parametrize("path", ["/a b/c", "/x; echo pwned", "/$(echo pwned)", "/it's", "-n"])
def test_a_path_in_a_script_is_never_a_command(path: str) -> None:
    argv = fill(["sh", "-c", "printf %s {prefix}"], {"prefix": path})
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == path


@pytest.mark.parametrize(
    "shell",
    [
        ["sh", "-ec"], ["bash", "-e", "-c"], ["/bin/bash", "-eo", "pipefail", "-c"], ["bash", "-o", "pipefail", "-ec"],
        ["bash", "--norc", "-c", "-u"], ["sh", "-c", "--"], ["dash", "+e", "-c"], ["env", "A=b", "sh", "-uc"],
        ["bash", "--rcfile", "/dev/null", "-c"], ["bash", "--init-file", "/dev/null", "--norc", "-ec"],
    ],
)  # fmt: skip
def test_a_script_is_known_however_its_shell_is_called(shell: list[str]) -> None:
    path = "/$(echo pwned) b"
    argv = fill([*shell, 'printf %s {prefix} "$1"', "{prefix}", "{prefix}"], {"prefix": path})
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == 2 * path


@pytest.mark.parametrize("shell", [["sh", "{prefix}", "-c", "{prefix}"], ["bash", "--norc", "{prefix}"], ["ksh"]])
def test_what_is_no_script_is_not_quoted(shell: list[str]) -> None:
    assert fill(shell, {"prefix": "/a b"}) == [word.replace("{prefix}", "/a b") for word in shell]


def test_flags_in_a_script_are_words() -> None:
    argv = fill(["sh", "-c", "printf '[%s]' {cflags} \"X={cflags}\""], {"cflags": "-O2 -DA=;x"})
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[-O2][-DA=;x][X=-O2 '-DA=;x']"


def test_only_the_script_of_a_shell_is_quoted() -> None:
    values = {"prefix": "/a b"}
    assert fill(["sh", "-c", "x {prefix}", "{prefix}"], values) == ["sh", "-c", f"x {shlex.quote('/a b')}", "/a b"]
    again = ["sh", "-c", 'exec "$@"', "sh", "-c", "{prefix}"]
    assert fill(again, values) == [*again[:-1], "/a b"], "an argument of the script"
    assert fill(["cc", "-c", "{prefix}"], values) == ["cc", "-c", "/a b"]


def test_a_compiler_of_several_words_is_words_where_it_stands_alone() -> None:
    values = {"cc": "printf [%s]", "cxx": "printf [%s]", "cflags": "-O2"}
    assert fill(["{cc}", "a.c", "CC={cc}"], values) == ["printf", "[%s]", "a.c", "CC=printf [%s]"]
    script = 'X={cc} Y={cxx}\n({cc} a.c);{cxx} {cflags}; {{ {cc} "$X"; }}'
    argv = fill(["sh", "-c", script], values)
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[a.c][-O2][printf [%s]]"
    with pytest.raises(RecipeError, match=r"has \{cc\}, which has no value here"):
        fill(["sh", "-c", "x {cc}"], {"prefix": "/p"})
