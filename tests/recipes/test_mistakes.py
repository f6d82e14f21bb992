"""Recipes and settings with a mistake: the error names the file, the key, what was found, and what is allowed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from labs import SUITE
from perfbisect.errors import RecipeError
from perfbisect.recipes.builder_reader import load_builders
from perfbisect.recipes.configuration import load_configuration
from perfbisect.recipes.inventory import load_hosts, load_leases
from perfbisect.recipes.workload import load_workloads

Write = Callable[[str, str], Path]

COMMAND = '[workloads.x]\nsummary = "x"\ncommand = ["x"]\n'

ARCHIVE = '[archives.a]\naddress = "https://example.org/{version}/a.tar.gz"\nfile = "a"\nsha256 = {}\n'

# Kind of file → what is put into it, and what the error must say.
MISTAKES: dict[str, list[tuple[str, str]]] = {
    "end of a builder": [
        ('[build.evn]\nA = "1"', r"`build.evn` is an unknown key. Did you mean 'env'"),
        (
            '[build.env]\n"A;touch b" = ""',
            r'`build.env.A;touch b` is "A;touch b", but must be a name of an environment',
        ),
        ('[dataset]\n[variants.x]\nname = "x"', r"`variants.x.name` is an unknown key"),
        ('timeout = "fast"', r'`build.timeout` is "fast", but must be a number of seconds above 0'),
        ('needs = ["make x"]', r'`build.needs\[0\]` is "make x", but must be a program, a header such as'),
        ('[build.packages]\n"x.h" = {suse = "x"}', r"`build.packages.x.h.suse` is an unknown key.*"),
        ("env = 3", r"`build.env` is the number 3, but must be a table"),
        ('configure = ["make"]', r'`build.configure\[0\]` is "make", but must be a command'),
        ("configure = [[]]", r"`build.configure\[0\]` is a list, but must be a command"),
        ('[server]\nstart = ["s"]', r"`server.initialise` is missing: it must be a list"),
        ('configure = [["{sorce}/configure"]]', r"unknown placeholder \{sorce\}. Did you mean 'source'"),
        ('env = {A = "{socket}"}', r"`build.env.A` has the unknown placeholder"),
        ('env = {A = "${X"}', r"`build.env.A` has a lone \{"),
        ('[[when]]\nchange.library = "x"', r"`when\[0\]` has no condition"),
        ('options = ["{archives.bost}"]', r"`build` has the placeholder \{archives.bost\}, but no such archive exists"),
        (f"{ARCHIVE}pattern = '('", r"`archives.a.pattern` is no regular expression: missing \)"),
        (f"{ARCHIVE[:-3]}{{1 = 'AB'}}\npattern = '(.)'", r'`archives.a.sha256.1` is "AB", but must be 64 hexadecimal'),
        (f"{ARCHIVE}pattern = 'x'", r"`archives.a.pattern` has 0 groups, but must have one: the version"),
        ('[[when]]\nfile = "x"', r"`when\[0\]` changes nothing"),
        (
            '[[when]]\nfile = "x"\nchange.build.confgure = []',
            r"`when\[0\].change.build.confgure` is an unknown key. Did you mean 'configure'",
        ),
        (
            '[[when]]\nfile = "x"\nchange.build.env.A = 1',
            r"`when\[0\].change.build.env.A` is the number 1, but must be text",
        ),
        (
            '[[when]]\nfile = "x"\nchange.build.env.A = "{x}"',
            r"`when\[0\].change.build.env.A` has the unknown placeholder \{x\}",
        ),
        (
            '[[when]]\nfile = "x"\nchange.server.start = ["s"]',
            r"`when\[0\].change.server.initialise` is missing",
        ),
        ('[[when]]\nfile = "x"\nchange.extends = "y"', r"change.extends` cannot depend"),
        (
            '[[when]]\nversion = "~8"\nchange.library = "x"',
            r'`when\[0\].version` is "~8", but must be one or',
        ),
        ('[[when]]\nversion = ">8"\nchange.library = "x"', r"when\[0\].version` cannot be decided"),
        ("[[when]]\nversion = 8.0\n", r"`when\[0\].version` is the number 8.0, but must be one"),
        ('[[when]]\ncompiler = "gc>=12"\nchange.library = "x"', r'is "gc>=12", but must be gcc or clang'),
        (
            '[[when]]\ncompiler = "gcc 12"\nchange.library = "x"',
            r'is "gcc 12", but must be gcc or clang, and of which',
        ),
        ('[[when]]\nfile = "x"\nchange.build.artifacts = ["/x"]', r"artifacts\[0\]` is \"/x\""),
        ("x = \ny = 1", r"is not valid TOML: .*line \d+"),
    ],
    "beginning of a builder": [
        ('extends = "smll"', r"`extends` is \"smll\", but .* Did you mean 'small'"),
        ('variant = "o2"', r"`variant` is \"o2\", but no such variant exists"),
        (
            'release_tags = ["v"]',
            r"`release_tags\[0\]` is \"v\", but must be a name with {version}",
        ),
        (
            'ignore = ["a", "/doc"]',
            r"`ignore\[1\]` is \"/doc\", but must be a path from the top of",
        ),
        ('ignore = ["doc/"]', r"`ignore\[0\]` is \"doc/\", but must be a path from the top"),
        ('library = "../x.so"', r"`library` is \"../x.so\", but must be a path below"),
        ('folder = "x"', r"`folder` is an unknown key"),
        (
            'installed_version = ["{source}/V"]',
            r"`installed_version\[0\]` has the unknown placeholder \{source\}",
        ),
        ('version = ["cat", "{prefix}/V"]', r"`version\[1\]` has the unknown placeholder"),
    ],
    "suite": [
        ('[workloads.x]\nstatement = "x"', r"`workloads.x.summary` is missing: it must be text"),
        (
            "[workloads.x]\nargs = {a = [1]}",
            r"`workloads.x.args.a` is a list, but must be text or a whole number or a number or true or false",
        ),
        (
            '[workloads.x]\nsummary = "x"\nstatement = "x"\nargs = {--a = 1}',
            r'`workloads.x.args.--a` is "--a", but must be an',
        ),
        ('[workloads.x]\noperation = "querys"', r'must be one of "event", "query". Did you mean \'query\''),
        ('[workloads.x]\nsummary = "x"', r"`workloads.x` has neither a script nor a statement"),
        (
            '[workloads.x]\nsummary = "x"\nscript = "select.lua"\nstatement = "x"',
            r"`workloads.x` has both a script and a statement",
        ),
        (
            '[workloads.x]\nsummary = "x"\nscript = "selct.lua"',
            r"`workloads.x.script` is \"selct.lua\", but .* has no such file. Did you mean 'select.lua'",
        ),
        (
            '[workloads.x]\nsummary = "x"\nstatement = "x"\nprepare = "x"\nprepare_script = "select.lua"',
            r"`workloads.x` has both prepare_script and prepare",
        ),
        (
            '[workloads.x]\nsummary = "x"\ncommand = ["x"]\nstatement = "x"',
            r"`workloads.x.statement` is for sysbench",
        ),
        (
            '[workloads.x]\nsummary = "x"\nstatement = "x"\nrate = "([0-9]+)"',
            r"`workloads.x.rate` is for workloads with a `command`",
        ),
        (f'{COMMAND}rate = "(x)"\ncost = "(y)"', r"`workloads.x` has both a rate and a cost"),
        (f'{COMMAND}cost = "x("', r'`workloads.x.cost` is "x\(", which is not a regular expression: missing \)'),
        (f'{COMMAND}operations = "x"', r'`workloads.x.operations` is "x", which has no groups'),
        (f'{COMMAND}rate = "(x)(y)"', r"which has 2 groups, but must have one"),
        (f'{COMMAND}rate = "$.a[b]"', r'which is not a path into JSON: "\[b\]" is invalid'),
        (
            f'{COMMAND}prepare_commands = [["x", "{{datta}}"]]',
            r"`workloads.x.prepare_commands\[0\]\[1\]` has the unknown placeholder {datta}. Did you mean 'data'",
        ),
        (
            f'{COMMAND}args = {{data = "x"}}',
            r'`workloads.x.args` has "data", which is a placeholder of every command: {data}',
        ),
        (
            '[workloads."a/b"]\nsummary = "x"\nstatement = "x"',
            r"`workloads.a/b` is \"a/b\", but must be a name without /",
        ),
        ('[workloads.x]\ndriver = "x"', r"`workloads.x.driver` is an unknown key"),
    ],
    "host": [
        ('memory = "4 GiB"', r"`hosts.big.memory` is \"4 GiB\", but must be a whole number of MiB, 0 or more"),
        ('address = "-oProxyCommand=x"', r"`hosts.big.address` is .*, but must be \"local\", or an address"),
        ('address = "ssh://"', r"`hosts.big.address` is .*, but must be \"local\", or an address"),
        ('address = "ssh://me@"', r"`hosts.big.address` is .*, but must be \"local\", or an address"),
        ('root = "/a b"', r'`hosts.big.root` is "/a b", but must be a path of letters, digits'),
        ('root = "/$(x)"', r"`hosts.big.root` is .* but must be a path"),
        ('root = "/a\\n"', r"`hosts.big.root` is"),
        ('server_cpus = "0..3"', r"must be a list of CPUs such as"),
        ('ccache_size = "big"', r"must be a size such as"),
        ('class = "c 8"', r"`hosts.big.class` is .*, but must be a name such as"),
        ('ccache_remote = "cache:6379"', r"must be an address such as"),
        ('ccache_remote = "http://x|password=$y"', r"must be an address such as"),
        ('ccache_remote = "redis://me:se cret@cache:1"', r'is "redis://\*\*\*@cache:1", but'),
        ('device = "/dev/sd a"', r"must be a block device such as"),
    ],
    "leases": [
        ('[leases.a]\nacquire = ["x"]', r"`leases.a.release` is missing"),
        ('[leases.a]\nacquire = ["{lease}"]\nrelease = ["x"]', r"`leases.a.acquire\[0\]` has the unknown placeholder"),
        (
            '[leases.a]\nacquire = ["x"]\nrelease = ["{address}"]',
            r"`leases.a.release\[0\]` has the unknown placeholder",
        ),
        ('[leases.a]\nextends = "b"', r"`leases.a.extends` is \"b\", and there is no such lease"),
        ('[leases.a]\nextends = "b"\n[leases.b]\nextends = "a"', r"no such lease to extend"),
        ('[leases.a]\nextends = "a"', r"no such lease to extend"),
        ("[leases.a]\nevery = 0", r"`leases.a.every` is the number 0, but must be a number of seconds"),
        ('[leases.a.host]\nroot = "/a b"', r"`leases.a.host.root` is"),
        ("[leases.a.host]\nleased = true", r"`leases.a.host.leased` is an unknown key"),
    ],
    "config": [
        ('builds = "builds"', '`shared.builds` is "builds", but must be an absolute path, or an address'),
        ('builds = "./builds"', "must be an absolute path"),
        ('builds = "s3://two words"', "must be an absolute path"),
        ('ccache = "cache:6379"', "must be an address"),
        ('store = "/srv"', "`shared.store` is an unknown key"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "text", "sentence"), [(kind, *mistake) for kind, mistakes in MISTAKES.items() for mistake in mistakes]
)
def test_a_mistake_is_named(write: Write, small: str, kind: str, text: str, sentence: str) -> None:
    write("builders/small/builder.toml", small)
    write("workloads/tables/select.lua", "")
    name, whole, load = {
        "end of a builder": ("builders/wrong/builder.toml", small + text, load_builders),
        "beginning of a builder": ("builders/wrong/builder.toml", f"{text}\n{small}", load_builders),
        "suite": ("workloads/tables/suite.toml", SUITE + text, load_workloads),
        "host": ("hosts.toml", f"[hosts.big]\n{text}", load_hosts),
        "leases": ("hosts.toml", text, load_leases),
        "config": ("config.toml", f"[shared]\n{text}\n", load_configuration),
    }[kind]
    file = write(name, whole)
    with pytest.raises(RecipeError, match=sentence) as caught:
        load()
    assert str(caught.value).startswith(f"{file}:")
