"""Random recipes, inventories, patterns and command lines: each mistake gets a message, and never status 70 (a bug).

`FUZZ_EXAMPLES=5000 pytest tests/hostile/test_fuzz.py` tries other examples each time. Without the variable, each
property test tries a few fixed examples, and most property tests are slow tests.
"""

import copy
import json
import math
import os
import shutil
import string
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sample_hunt
from perfbisect.cli.main import VERBS, bisect
from perfbisect.cli.options.param_types import ParsedParam
from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.recipes.configuration import size_in_bytes
from perfbisect.recipes.inventory import load_host, load_hosts
from perfbisect.recipes.output_pattern import check_pattern, find_number
from perfbisect.store.history import History
from program import Ended, run
from repos import Repo

pytestmark = pytest.mark.tools  # git

ROOT = Path(__file__).parents[2]
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def fuzz(usual: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Settings of a property test: ``usual`` fixed examples, or FUZZ_EXAMPLES random examples."""
    return settings(
        max_examples=EXAMPLES or usual,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def check(ended: Ended) -> None:
    """Check that the program ended without a bug, and with a message if it failed."""
    assert ended.status in (0, 1, 2, 3, 4, 130), ended.err + last_traceback()
    assert "Traceback" not in ended.out + ended.err
    if ended.status in (3, 4):
        messages = [line.partition("Error:")[2] if "Error:" in line else line for line in ended.err.splitlines()]
        assert any(line.strip() for line in messages) or ended.out.strip()


def last_traceback() -> str:
    """The last traceback that the program wrote to its log."""
    kept = Path(os.environ["HOME"], ".local/state/perfbisect/error.log")
    return kept.read_text() if kept.exists() else ""


# Texts and numbers

ODD = (
    *json.loads(Path(__file__).with_name("odd_texts.json").read_text()),
    *("9" * digits for digits in (19, 30, 5000)),
    *("x" * letters for letters in (300, 10_000)),
    *(form.format("9" * 5000) for form in ("x={}", "$.a[{}]", "{}Ti", "c{}")),
    *("(" * 400, "$" + ".a" * 2000, "$[0]" * 2000),
)
texts = st.one_of(
    st.sampled_from(ODD),
    st.text(st.characters(exclude_characters="\0"), max_size=20),
    st.text(st.sampled_from(string.printable + "{}[]()$\udcfe"), max_size=12),
)
numbers = st.one_of(
    st.sampled_from([0, -1, 1, 2, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400]),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e308, 1e-9]),
    st.integers(),
    st.floats(),
)


def text_of(number: float) -> str:
    """A number as text. Python refuses to convert an integer of thousands of digits."""
    return str(number) if isinstance(number, float) or abs(number) < 10**300 else "1" + "0" * 5000


# The working directory of the examples: a repository, recipes, hosts and a history

GIVEN = Path(__file__).parent / "given"
HOSTS = """
[hosts.local]
root = "/dev/null/no-folder"
[hosts.here]
root = "{root}"
"""


@pytest.fixture
def world(tmp_path: Path, git: Repo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of all examples, in which no command can measure or reach another machine."""
    shutil.copytree(GIVEN, tmp_path / "given")
    (tmp_path / "given/hosts.toml").write_text(HOSTS.format(root=tmp_path / "root"))
    shutil.copytree(tmp_path / "given", Path(os.environ["HOME"], ".config/perfbisect"))
    ends = git.history({"run.sh": f"echo rate {rate}\n"} for rate in (10, 20))
    ours = {"builder": "script", "workload": "one", "host": "here", "metric": "rate", "repository": str(git.path)}
    ours |= {"good_commit": ends[0], "bad_commit": ends[1]}
    with closing(History.open(tmp_path / "some.db")) as history:
        hunt = sample_hunt.write(history)
        history.update_settings(hunt, replace(sample_hunt.SETTINGS, **ours))  # type: ignore[arg-type]

    def stop(*_: object, **__: object) -> None:
        raise UsageError("The world of the fuzzer ends here.")

    for name in (
        "hunt.session.begin", "hunt.attempt.SessionAttempt.carry_out", "demo.history.write_history",
        "repository.discovery.run_with_progress", "cli.pages.serve_datasette",
    ):  # fmt: skip
        monkeypatch.setattr(f"perfbisect.{name}", stop)
    work = tmp_path / "work"
    work.mkdir()
    (work / "repo").symlink_to(tmp_path / "repo")
    (work / "given").symlink_to(tmp_path / "given")
    shutil.copy(tmp_path / "some.db", work / "some.db")
    monkeypatch.chdir(work)
    yield work


# Command lines

KNOWN = tomllib.loads(Path(__file__).with_name("command_lines.toml").read_text())
FILES = ("history", "folder", "repo", "builders", "workloads", "hosts")


def forms_of(verb: str) -> list[set[str]]:
    """Sets of parameters that can be used together."""
    return [set(form) for form in KNOWN["forms"].get(verb, [[]])]


def usual(verb: str, parameter: click.Parameter) -> Sequence[str]:
    """Valid values of a parameter."""
    name, kind = str(parameter.name), parameter.type
    if name in KNOWN["bounded"].get(verb, ()):
        return KNOWN["bounded"][verb][name][:2]  # type: ignore[no-any-return]
    if isinstance(kind, click.Choice):
        return [str(choice) for choice in kind.choices]
    if isinstance(kind, click.IntRange | click.FloatRange):
        return "1", "2", "7"
    return KNOWN["type"].get(str(kind.name)) or KNOWN["usual"].get(name, ("x",))


def odd(verb: str, parameter: click.Parameter) -> st.SearchStrategy[str]:
    """Mostly invalid values of a parameter. Paths stay inside the working directory."""
    name = str(parameter.name)
    if name in KNOWN["bounded"].get(verb, ()):
        return st.sampled_from(KNOWN["bounded"][verb][name])
    if name in FILES and isinstance(parameter.type, click.Path):
        return texts.map(lambda text: text.lstrip("/~").replace("..", "xx"))
    return st.one_of(texts, numbers.map(text_of))


NUMERIC = (click.IntRange, ParsedParam)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A verb with some of its options and arguments, most of them valid."""

    def one_in(many: int) -> bool:
        return draw(st.integers(1, many)) == many

    verb = draw(st.sampled_from([*VERBS, *VERBS, *VERBS, draw(texts)]))
    if verb not in VERBS:
        return [verb, *draw(st.lists(texts, max_size=3))]
    command = bisect.get_command(click.Context(bisect), verb)
    assert command is not None
    forms = forms_of(verb)
    form = draw(st.sampled_from([*forms, *forms, set.union(*forms)]))
    always = form | {"history", "repo", "host", "dry_run"}
    words, arguments = list(KNOWN["always"].get(verb, [])), []
    for parameter in command.params:
        name = parameter.name
        wanted = name in always or parameter.required or (name not in set.union(*forms) and one_in(6))
        if not wanted or one_in(25):
            continue
        values = odd(verb, parameter) if one_in(8) else st.sampled_from(usual(verb, parameter))
        if isinstance(parameter, click.Argument):
            many = parameter.nargs == -1
            arguments += draw(st.lists(values, min_size=2, max_size=3, unique=True)) if many else [draw(values)]
        elif getattr(parameter, "is_flag", False):
            words.append(parameter.opts[0])
        else:
            option, value = draw(st.sampled_from(parameter.opts)), draw(values)
            words += [f"{option}={value}"] if option.startswith("--") and draw(st.booleans()) else [option, value]
    return [verb, *words, *(["--"] if draw(st.booleans()) else []), *arguments]


@pytest.mark.slow
@fuzz(40)
@given(words=command_lines())
def test_random_command_line_ends_without_a_bug(world: Path, words: list[str]) -> None:
    check(run(*words))


ODD_NUMBERS = ("nan", "inf", "-inf", "1e400", "-0", "9" * 30, "9" * 5000, "5e-324", "1e308", "1e9")


@pytest.mark.parametrize(
    "verb", [verb if verb == "run" else pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS]
)
def test_odd_number_for_any_option_ends_without_a_bug(world: Path, verb: str) -> None:
    command = bisect.get_command(click.Context(bisect), verb)
    assert command is not None
    form = forms_of(verb)[0] | ({"repo", "host"} if verb in ("run", "compare", "noise") else set())
    words, arguments = list(KNOWN["always"].get(verb, [])), list[str]()
    for each in (each for each in command.params if each.required or each.name in form):
        value = usual(verb, each)[0]
        if isinstance(each, click.Argument):
            arguments += [value, "HEAD"] if each.nargs == -1 else [value]
        else:
            words += [each.opts[0], value]
    numeric = [each.opts[0] for each in command.params if each.opts[0][0] == "-" and isinstance(each.type, NUMERIC)]
    for option, number in product(numeric, ODD_NUMBERS):
        check(run(verb, *words, option, number, *arguments))


# Recipes

Table = dict[str, Any]
SHIPPED = {
    kind: [path.read_text() for path in (*ROOT.glob(f"{folder}/*/{kind}.toml"), *GIVEN.glob(f"{folder}/*/{kind}.toml"))]
    for kind, folder in (("builder", "builders"), ("suite", "workloads"))
}
SHIPPED["hosts"] = [(ROOT / "hosts.toml").read_text(), Path(__file__).with_name("hosts.toml").read_text()]
values = st.recursive(
    st.one_of(texts, numbers, st.booleans(), st.dates(), st.datetimes(), st.times()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=4,
)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths (tuples of keys and indices) of all tables, lists and leaves of ``value``."""
    yield way
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(each, (*way, key))


ODD_BYTES = (b"\0", b"\xff", b"\r", b'"""', b"'''", b"[[", b"]]", b"\\u0000", b"\xef\xbb\xbf", b"=")


@st.composite
def recipes(draw: st.DrawFn, kind: str) -> bytes:
    """A shipped file with a few random changes of values, keys or text."""
    text = draw(st.sampled_from(SHIPPED[kind]))
    table = copy.deepcopy(tomllib.loads(text))
    for _ in range(draw(st.integers(0, 3))):
        found = [way for way in places(table) if way]
        if not found:
            break
        *way, last = draw(st.sampled_from(found))
        holder: Any = reduce(getitem, way, table)
        match draw(st.sampled_from(["value", "value", "text", "number", "delete", "key", "append"])):
            case "value" | "text" | "number" as kind:
                holder[last] = draw({"value": values, "text": texts, "number": numbers}[kind])
            case "delete":
                del holder[last]
            case "key" if isinstance(holder, dict):
                holder[draw(texts)] = holder.pop(last)
            case _:
                if isinstance(holder, dict):
                    holder[draw(texts)] = draw(values)
                else:
                    holder.append(draw(values))
    try:
        text = tomli_w.dumps(table)
    except (TypeError, ValueError):  # TOML has no syntax for the value
        return draw(st.binary(max_size=40))
    raw = text.encode(errors="surrogateescape")
    at = draw(st.integers(0, len(raw)))
    odd = draw(st.sampled_from(ODD_BYTES))
    depth = draw(st.sampled_from([50, 400, 3000, 100_000]))
    deep = draw(st.sampled_from([b"[" * depth, b"[" * depth + b"]" * depth, b"{a=" * depth]))
    long = draw(st.sampled_from([b"9" * 5000, b"0x" + b"f" * 5000, b"1e99999", b'"' + b"x" * 100_000 + b'"']))
    odds = [raw[:at], raw[:at] + odd + raw[at:], raw + raw, b"x = " + deep + b"\n" + raw, raw + b"\ny = " + long]
    return draw(st.sampled_from([*[raw] * 4, *odds, raw + b"\nx." + b"a." * min(depth, 2000) + b"b = 1"]))


@pytest.fixture
def place(world: Path) -> Path:
    """The folder of the random recipes."""
    (world / "odd").mkdir()
    return world / "odd"


@pytest.mark.slow
@fuzz(12)
@given(raw=recipes("builder"), name=st.sampled_from(["x", "script", "é", "a b", "-x", "x\udcff", "$(id)"]))
def test_random_builder_ends_without_a_bug(place: Path, raw: bytes, name: str) -> None:
    file = place / name / "builder.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(raw)
    try:
        ended = run("builders", f"--show={name}", "--builders", "odd")
        check(ended)
        check(run("builders", "--builders", "odd"))
        words = (f"--builder={name}", "--run", "true", "--builders", "odd", "--repo", "repo", "--host", "here")
        if ended.status == 0:
            check(run("run", "HEAD~1", "HEAD", "--dry-run", *words))
    finally:
        shutil.rmtree(file.parent)


@fuzz(6)
@given(raw=recipes("suite"), name=st.sampled_from(["one", "point", "é", "", "x\udcff"]))
def test_random_suite_ends_without_a_bug(place: Path, raw: bytes, name: str) -> None:
    file = place / "suite/suite.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(raw)
    check(run("workloads", "--show", name, "--workloads", "odd"))
    ended = run("workloads", "--builder", "script", "--workloads", "odd")
    check(ended)
    if ended.status == 0:
        common = ("--builder", "script", "--workloads", "odd", "--repo", "repo")
        check(run("run", "HEAD~1", "HEAD", "-w", "suite/one", *common, "--host", "here", "--dry-run"))
        check(run("compare", "HEAD~1", "HEAD", "-w", "suite", *common, "--host", "local"))


@fuzz(15)
@given(raw=recipes("hosts"))
def test_random_inventory_ends_without_a_bug(place: Path, raw: bytes) -> None:
    (place / "hosts.toml").write_bytes(raw)
    check(run("hosts", "--hosts", "odd/hosts.toml"))
    try:
        known = [host.name for host in load_hosts("odd/hosts.toml")]
    except PerfBisectError:
        return
    for name in known:
        if "\0" not in name:
            check(run("hosts", "--hosts", "odd/hosts.toml", f"--show={name}"))
        host = load_host(name, "odd/hosts.toml")
        assert min(size_in_bytes(host.keep), size_in_bytes(host.ccache_size)) >= 0


# Numbers in the output of commands

PIECES = [r"(\d+)", r"([0-9.]+)", "(.*)", "()", "(x)?", "(?:a)", "rate: ", "^", "$", "|", r"\b", "(?m)", "[", "("]
pieces = st.sampled_from(PIECES) | texts
patterns = st.one_of(texts, st.lists(pieces, max_size=4).map("".join))
outputs = st.lists(
    st.one_of(
        texts.filter(lambda text: len(text) < 1000),
        st.sampled_from(["rate: 5", "rate: nan", "rate: 1,000.5", "1e400", "9" * 5000, '{"a": [1, {"b": NaN}]}', "[1]", '"x"']),
        st.sampled_from(["[" * 100_000, '{"a":' * 100_000, "[" * 5000 + "]" * 5000, '{"a": ' + "9" * 5000 + "}", '{"a": 1e999}']),
        st.recursive(numbers | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=5).map(repr),
    ),
    max_size=4,
)  # fmt: skip
SLOW = ("(a*)*$",)  # perfbisect does not protect users from patterns that take exponential time


@fuzz(60)
@given(pattern=patterns.filter(lambda pattern: not any(slow in pattern for slow in SLOW)), out=outputs, err=outputs)
def test_random_pattern_finds_a_number_or_raises_value_error(pattern: str, out: list[str], err: list[str]) -> None:
    try:
        check_pattern(pattern)
        number = find_number(pattern, "\n".join(out), "\n".join(err))
    except ValueError as error:
        assert str(error)
        assert not isinstance(error, UnicodeError)
    else:
        assert 0 < number < math.inf


BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "faults"
# A hunt with a run of commit 0 and a slower run of commit 2. Each case then damages one value.
HUNT = """\
from dataclasses import replace
from checks import check
from history import Kept, Run
from ledger import read_ledger
from repository import Range
from session import Session

ledger = "begin run 7 0 1.0\\nend run 7 0 1.1 1000.5\\nbegin run 8 2 1.2\\nend run 8 2 1.3 600.25\\n"
events = {1: ("RunFinished", "{}"), 2: ("RunFinished", "{}")}
kept = Kept((), 1, events, (Run("a", 1000.5), Run("c", 600.25)), ("b",), "Found", "c")
output = '{"event":"RunFinished","facts":{"reported":1000.5}}\\n'
session = Session((), folder / "output", 0, 0, 80 << 20)
"""
CHECK = """
(folder / "ledger").write_text(ledger)
(folder / "output").write_text(output)
found = check(kept, read_ledger(folder / "ledger"), Range(("a", "b", "c"), 2, frozenset({1})), [session])
"""
DAMAGE = [line.split(" → ") for line in Path(__file__).with_name("damages.txt").read_text().splitlines()[1:]]


def test_fault_checks_find_each_damage_and_no_other_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARK)
    with mock.patch.dict(sys.modules):
        for damage, sentence in [*DAMAGE, ["session.status = 130", ""]]:
            world: dict[str, Any] = {"folder": tmp_path}
            exec(f"{HUNT}{damage}{CHECK}", world)  # noqa: S102
            found = "\n".join(world["found"])
            assert sentence in found if sentence else found == "", damage
