"""The password file and the token file of `bisect serve`: format, permissions, and refused logins."""

import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from perfbisect.cli.guard import LoginGuard, add_user, matches_hash, names_this_machine, read_passwords, read_token
from perfbisect.errors import UsageError
from program import PROGRAM, exits

FOREIGN = "$2y$05$5rR7k3pd3fa1PKBGCNuK8OoQoL6f6ArYUUik.DvHhScAdKfaaCwja"  # by htpasswd -nbB -C 5 reader password


def private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def test_each_password_hash_has_its_own_salt(tmp_path: Path) -> None:
    """A hash that another program made is understood, too."""
    for name in ("one", "two"):
        add_user(tmp_path / "users", name, "naïve horse \U0001f40e")
    found = read_passwords(tmp_path / "users")
    assert found["one"] != found["two"]
    assert all(matches_hash("naïve horse \U0001f40e".encode(), stored) for stored in found.values())
    assert [matches_hash(word, FOREIGN) for word in (b"password", b"Password")] == [True, False]


WRONG_LINES = [
    "reader:secret", "reader", f"an n:{FOREIGN}", f"reader:{FOREIGN}:1", f"reader:{FOREIGN.replace('$05$', '$31$')}",
    f"reader:{FOREIGN.replace('$05$', '$00$')}", f"reader:{FOREIGN[:-1]}", f"reader:{FOREIGN}A", f"reader:{FOREIGN[:-1]}!",
    "reader:$apr1$abcdefgh$abcdefghijklmnopqrstuv",
]  # fmt: skip


def test_invalid_line_of_the_password_file_is_reported(tmp_path: Path) -> None:
    """Comments and empty lines are valid. A token file without a token is refused."""
    for line in WRONG_LINES:
        with pytest.raises(UsageError, match=r"Line 3 of .*users"):
            read_passwords(private(tmp_path / "users", f"# readers\n\n{line}\n"))
    for text in ("", "short\n", "two words of a token, long enough\n", f"{'a' * 30}\n{'b' * 30}"):
        with pytest.raises(UsageError, match="has no token"):
            read_token(private(tmp_path / "token", text))


def test_add_user_adds_or_changes_names_and_keeps_the_file_private(tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert add_user(users, "reader", "correct horse")
    assert add_user(users, "other", "correct horse")
    assert not add_user(users, "reader", "battery staple")
    found = read_passwords(users)
    assert {name: matches_hash(b"battery staple", one) for name, one in found.items()} == {
        "other": False,
        "reader": True,
    }
    assert users.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["users"]
    for name, password in (("a:b", "correct horse"), ("", "correct horse"), ("eve", "short"), ("eve", "x" * 73)):
        with pytest.raises(UsageError):
            add_user(users, name, password)
    users.chmod(0o644)
    with pytest.raises(UsageError, match="Other users can read"):
        add_user(users, "eve", "correct horse")


def test_password_is_read_from_standard_input(tmp_path: Path) -> None:
    argv = [*PROGRAM, "serve", "--add-user", "reader", "--password-file", "users"]
    made = subprocess.run(argv, input="correct horse\n", capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (made.stdout, made.stderr) == ("reader can log in: users\n", "")
    assert matches_hash(b"correct horse", read_passwords(tmp_path / "users")["reader"])
    assert "--password-file FILE" in exits(3, "serve", "--add-user", "reader")


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hashes that are compared. A failed login does not wait."""
    compared: list[str] = []
    guard = "perfbisect.cli.guard"
    monkeypatch.setattr(f"{guard}.matches_hash", lambda word, one: compared.append(one) or matches_hash(word, one))
    monkeypatch.setattr(f"{guard}.DELAY", 0.0)
    return compared


def basic(name: str, password: str) -> str:
    return f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"


def test_correct_login_is_not_hashed_again(tmp_path: Path, hashes: list[str]) -> None:
    add_user(tmp_path / "users", "reader", "correct horse")
    guard = LoginGuard(tmp_path / "users", None, "0.0.0.0")
    right, wrong = basic("reader", "correct horse"), basic("other", "correct horse")
    assert [guard.is_admitted(sent) for sent in (right, right, wrong, wrong, right)] == [True, True, False, False, True]
    assert len(hashes) == 3
    assert not matches_hash(b"x" * 73, hashes[-1])
    (tmp_path / "users").unlink()
    assert not guard.is_admitted(right)


def test_unknown_name_takes_as_long_as_a_known_name(tmp_path: Path, hashes: list[str]) -> None:
    """Also if another program made the hashes, possibly with a lower cost."""
    guard = LoginGuard(private(tmp_path / "users", f"reader:{FOREIGN}\n"), None, "0.0.0.0")
    for name in ("reader", "other"):
        guard.is_admitted(basic(name, "wrong horse"))
    add_user(tmp_path / "users", "third", "correct horse")
    guard.is_admitted(basic("other", "correct horse"))
    assert [each[4:6] for each in hashes] == ["05", "05", "12"]
    assert not any(matches_hash(b"", each) for each in hashes)


def test_all_wrong_logins_get_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    token = "0123456789abcdef" * 2
    guard = LoginGuard(None, private(tmp_path / "token", f"{token}\n"), "0.0.0.0")
    assert guard.refusal("x", f"Bearer {token}") is None
    wrong = ("Bearer wrong", basic("reader", "a"), "Bearer ä", "Digest a", "Bearer", "Basic %")
    refusals = [guard.refusal("x", sent) for sent in wrong]
    assert waited == [1.0] * len(refusals)
    assert refusals == [guard.refusal("x", "")] * len(refusals)
    assert len(waited) == len(refusals), "a request without a login does not wait"


OWN = ("localhost", "LOCALHOST:1", "[::1]:8001", "[::1]", "127.9.9.9")
FOREIGN_HOSTS = (
    "[::1]x", "localhost:80:80", "evil.com\\@localhost", "evil.com@localhost", "localhost/", "localhost:", "localhost:x",
    " localhost", "localhost\n", "localhost?", "localhost#", "[", "",
)  # fmt: skip


def test_this_machine_is_named_only_by_a_host_and_a_port() -> None:
    hosts = {host: names_this_machine(host, "127.0.0.1") for host in (*OWN, *FOREIGN_HOSTS)}
    assert hosts == dict.fromkeys(OWN, True) | dict.fromkeys(FOREIGN_HOSTS, False)
