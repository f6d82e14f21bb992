"""Loads and checks datasets. The first build that needs a dataset loads it. The loaded dataset never changes, because
each visit uses a copy.

``root/datasets/KEY/`` contains ``data`` and its record ``dataset.json``. The folder of a dataset is never incomplete,
because the folder gets its name by a single rename after all files are written. When perfbisect copies the data, it
compares the number of files and bytes with the record. For a server, perfbisect also compares the answers to the
queries of the workload's ``check`` with the answers after loading. If the answers differ, either the data is damaged,
or the build is wrong. The data counts as damaged only if the build gives the recorded answers on data that it has
loaded itself.

A build may be unable to start on the data of its key KEY, because a commit changed the on-disk format without a new
version number. The build then loads data itself, which is stored under the key KEY-BUILD.
"""

import hashlib
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.errors import DatasetDamaged, RunFailed, UsageError
from perfbisect.host.protocol import Host
from perfbisect.lab import servers
from perfbisect.lab.servers import (
    HostCommand,
    Installation,
    Service,
    data_owner_id,
    driver_options,
    raise_if_ended,
    run_server,
    run_to_end,
    service_in,
)
from perfbisect.lab.workload import command, lines_of, lua, sysbench
from perfbisect.recipes.builder import Builder, Server
from perfbisect.recipes.placeholders import Values, fill_command
from perfbisect.recipes.toml import read_text
from perfbisect.recipes.workload import Workload

LONG = 6 * 3600.0  # time limit in seconds of loading and copying of data, which may be large
SHORT = 300.0  # time limit in seconds of commands that print the format
UNLIKE = (
    "If this happens to many commits, set dataset.format_command of the recipe to a command that prints the format."
)

_COUNT = """find "$data" -type f -printf '%s\\n' | awk '{ bytes += $1 } END { printf "%d %.0f\\n", NR, bytes }'"""
# touch: the modification time of a dataset's folder is the time at which the dataset was last used.
_LAY_OUT = f"""\
rm -rf "$1" && mkdir -p "$1" && mkfifo "$1/control" "$1/ack" "$1/go" && mkdir "$1/tmp" || exit 1
data=$1/data
if [ -n "$2" ] && [ -d "$2/data" ]; then touch -c "$2"; cp -a --reflink=auto "$2/data" "$data"; else mkdir "$data"; fi || exit 1
[ -z "$3" ] || chown "$3:$3" "$1" "$data" "$1/tmp"
[ -z "$2" ] || {{ {_COUNT}; cat "$2/dataset.json" 2>/dev/null || :; }}
"""
# A folder with its final name is complete, and survives a power failure. After an interruption, the script continues.
_KEEP = """\
set -e
[ ! -d "$2" ] || exit 0
if [ -d "$1" ]; then
    rm -rf "$2.part"; mkdir -p "$2.part"
    cat >"$2.part/dataset.json"
    find "$1" "$2.part" -type f -exec sync -- {} +
    mv -T -- "$1" "$2.part/data"
fi
mv -T -- "$2.part" "$2"
"""


class DatasetRecord(msgspec.Struct, frozen=True):
    """The stored facts of loaded data."""

    build: str  # key of the build that loaded the data
    files: int
    bytes: int
    answers: list[str]  # the results of the workload's check after the data was loaded

    @property
    def size_text(self) -> str:
        """The size of the data as text: the numbers of bytes and of files."""
        return f"{self.bytes:,} bytes in {self.files:,} files"


def dataset_key(builder: Builder, workload: Workload, values: Values, format_text: str = "") -> str:
    """The key of the data that a workload needs; "" if the workload needs no data.

    The key depends on the system, its on-disk format, its settings, its initialisation, and the scripts and commands
    that load the data, but not on the build. ``values`` are the values of placeholders. ``format_text`` is the output
    of the recipe's command that prints the on-disk format.
    """
    script = lua.prepare_script(workload)
    if script is None and builder.server is None and not workload.prepare_commands:
        return ""
    inputs = [
        builder.driver, builder.name, builder.dataset.format, format_text, servers.server_identity(builder, values),
        *(read_text(file) for file in (lua.script_and_modules(workload, script) if script else ())),
        workload.prepare, workload.check, repr(sorted(workload.prepare_args.items())),
        *(command.data_inputs(builder, workload, values) if workload.prepare_commands else ()),
    ]  # fmt: skip
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]


def pristine_folder(host: Host, key: str) -> PurePosixPath:
    """The folder of the unchanged data with the key ``key``."""
    return host.root / "datasets" / key


def visit_folder(host: Host) -> PurePosixPath:
    """The folder of the present visit. The path is the same for all visits, because the length of a path can change
    addresses in memory."""
    return host.root / "visit"


def remove_visit(host: Host) -> None:
    """Remove the files of the last visit, which include a copy of the data."""
    host.run(["rm", "-rf", "--", str(visit_folder(host))], timeout=LONG)


def copy_for_visit(host: Host, key: str, server: Server | None, side: str = "") -> PurePosixPath:
    """Make a new folder for a visit, which contains FIFOs and the folder ``data``: a copy of the data with the key
    ``key``, or empty if ``key`` is "".

    The user that runs the ``server`` owns the copy. For paired runs, ``side`` is the name of the subfolder for one of
    the two visits. Raises DatasetDamaged if the size of the copy differs from the size of the loaded data.
    """
    folder, source = visit_folder(host) / side, str(pristine_folder(host, key)) if key else ""
    argv = ["sh", "-c", _LAY_OUT, "copy", str(folder), source, data_owner_id(host, server)]
    printed = host.run(argv, timeout=LONG).stdout
    if not key:
        return folder
    counted, _, remembered = printed.partition("\n")
    if (recorded := _read(remembered)) is None:
        raise damage_error(host, key, "the record of its size is missing")
    files, size = map(int, counted.split())
    if (copied := DatasetRecord("", files, size, [])).size_text != recorded.size_text:
        raise damage_error(host, key, f"{copied.size_text} were copied, but {recorded.size_text} were loaded")
    return folder


def damage_error(host: Host, name: str, why: str) -> DatasetDamaged:
    """The error that reports that loaded data has changed."""
    return DatasetDamaged(f"the dataset {name} on host {host.name} is damaged: {why}")


@dataclass(frozen=True, slots=True)
class DatasetLoading:
    """Loads data into the folder of a visit, using a build, and runs the workload's check."""

    host: Host
    system: Installation
    workload: Workload
    folder: PurePosixPath
    service: Service | None
    placed: PurePosixPath  # the folder of the workload's files

    @property
    def sysbench_connection_options(self) -> dict[str, str]:
        """The options with which sysbench connects to the server."""
        return driver_options(self.system.builder, self.service)

    def prepare_step_commands(self) -> Iterator[HostCommand]:
        """The commands of the workload's prepare step."""
        failed = "the dataset cannot be loaded"
        filled = command.command_placeholders(self.system, self.workload, self.placed, self.folder, self.service)
        for words in self.workload.prepare_commands:
            argv = fill_command(words, filled)
            yield HostCommand(argv, f"{failed}: {argv[0]}", "prepare", LONG, self.system.prefix, alone=True)
        if script := lua.prepare_script(self.workload):
            script_path = lua.script_path_on_host(self.placed, self.workload, script)
            argv = sysbench.prepare_argv(self.workload, script_path, self.sysbench_connection_options)
            yield self._by_sysbench(argv, failed, self.system.library)

    def workload_check_command(self) -> HostCommand:
        """The command that runs the workload's check."""
        script_path = lua.script_path_on_host(self.placed, self.workload, lua.lua_script_for_sql(self.workload))
        check = sysbench.check_argv(script_path, self.sysbench_connection_options)
        return self._by_sysbench(check, "the check of the workload fails", None)

    def run_prepare_step(self) -> None:
        """Raises RunFailed."""
        for host_command in self.prepare_step_commands():
            run_to_end(self.host, host_command)

    def answers_of_check(self) -> list[str]:
        """The server's answers to the queries of the workload's check; [] if the workload has no check. Raises
        RunFailed."""
        printed = lines_of(run_to_end(self.host, self.workload_check_command())) if self.workload.check else ()
        return [line.removeprefix(sysbench.ANSWER) for line in printed if line.startswith(sysbench.ANSWER)]

    def _by_sysbench(self, argv: list[str], who: str, library: PurePosixPath | None) -> HostCommand:
        env = lua.environment(self.workload, self.placed, self.folder / "data", library)
        return HostCommand(argv, who, "prepare", LONG, self.folder, env, complain=sysbench.failure_finder(LONG))


def print_data_format_argv(system: Installation, folder: PurePosixPath) -> list[str]:
    """The recipe's command that prints the on-disk format of the data in the visit's folder ``folder``; used if the
    system has no server."""
    return fill_command(system.builder.dataset.format_command, {**system.values, "data": str(folder / "data")})


def _read(text: str) -> DatasetRecord | None:
    try:
        return msgspec.json.decode(text, type=DatasetRecord)
    except msgspec.DecodeError:
        return None


def _shown(answers: list[str]) -> str:
    text = re.sub(r"\s+", " ", ", ".join(answers)) or "with nothing"
    return text if len(text) <= 100 else f"{text[:99]}…"


class DatasetKeeper:
    """Loads and checks the data of one workload on one host."""

    def __init__(self, host: Host, workload: Workload, earlier: Mapping[str, str]) -> None:
        """``earlier`` maps a commit to the key of the data that the commit used in earlier attempts of the hunt."""
        self.host = host
        self.workload = workload
        self.earlier = earlier
        self.keys: dict[str, str] = {}  # commit → key of its loaded data
        # Commit → {key of data with which the commit's server does not start: the error}.
        self._refused: dict[str, dict[str, RunFailed]] = {}
        self._verified: set[str] = set()  # keys of undamaged data
        self._reloaded: set[str] = set()  # keys of data that was damaged and loaded again

    def ensure_loaded(self, system: Installation) -> Generator[Warned]:
        """Load the data for a build, except if the data is already loaded and undamaged; then store the key of the data
        in ``keys``.

        Raises RunFailed if the data cannot be loaded, JobLost if the host has lost the job, UsageError if the data
        would differ from the data of earlier attempts, DatasetDamaged if data that was damaged and loaded again is
        damaged again.
        """
        commit, data_key = system.commit, ""
        while commit not in self.keys:
            try:
                data_key, fresh = self._find_or_load(system)
                self._check_earlier(system, data_key)
                if not (fresh or data_key in self._verified):
                    self._verify_answers(system, data_key)
                self._verified.add(data_key)
                self.keys[commit] = data_key
            except DatasetDamaged as damaged:
                yield self.remove_damaged(data_key, damaged)
            except RunFailed as failure:
                if not self.mark_dataset_refused(system, data_key, failure):
                    raise
        if refused := self._refused.get(commit):
            key, why = list(refused.items())[-1]
            text = f"{commit[:10]} does not start on the dataset {key} of another build, and gets its own"
            yield Warned(f"{text} {self.keys[commit]}: {why}", UNLIKE)

    def _find_or_load(self, system: Installation) -> tuple[str, bool]:
        """Find the data for a build, or load the data. Returns the key of the data ("" if the build needs no data), and
        whether this call has loaded the data.

        If the build did not start on the data of its key KEY, the next calls return the data KEY-OTHER that other
        builds have loaded for themselves, one after the other; at last, the build loads its own data. Raises RunFailed
        if loading fails.
        """
        if not (name := dataset_key(system.builder, self.workload, system.values, self._on_disk_format(system))):
            return "", False
        stored = self.host.run(["ls", "-1", str(self.host.root / "datasets")], check=False).stdout.splitlines()
        if refused := self._refused.get(system.commit):
            of_builds = sorted(data for data in stored if data.startswith(f"{name}-") and not data.endswith(".part"))
            name = next((data for data in (name, *of_builds) if data not in refused), f"{name}-{system.key[:8]}")
        if name in stored:
            return name, False
        answers = self._load_and_check(system)
        data = str(visit_folder(self.host) / "data")
        counted = self.host.run(["sh", "-c", f"data=$1; {_COUNT}", "count", data], timeout=LONG).stdout
        files, size = map(int, counted.split())
        about = msgspec.json.encode(DatasetRecord(system.key, files, size, answers)).decode()
        pristine = str(pristine_folder(self.host, name))
        self.host.run(["sh", "-c", _KEEP, "keep", data, pristine], stdin=about, timeout=LONG)
        return name, True

    def _load_and_check(self, system: Installation) -> list[str]:
        """Load data into the folder of the visit, using this build; return the server's answers to the check. Raises
        RunFailed.
        """
        loading = self._loading(system, copy_for_visit(self.host, "", system.builder.server))
        if (service := loading.service) is None:
            loading.run_prepare_step()
            return []
        service.run_all(service.recipe.initialise, "start")
        with run_server(service):
            service.run_all(service.recipe.create)
            loading.run_prepare_step()
            service.run_all(service.recipe.settle)
            return loading.answers_of_check()

    def _loading(self, system: Installation, folder: PurePosixPath) -> DatasetLoading:
        service, placed = service_in(self.host, system, folder), lua.place_scripts(self.host, self.workload)
        return DatasetLoading(self.host, system, self.workload, folder, service, placed)

    def _on_disk_format(self, system: Installation) -> str:
        """The output of the recipe's command that prints the on-disk format that a build uses; "" without such a
        command. Raises RunFailed."""
        format_command = system.builder.dataset.format_command
        if not format_command:
            return ""
        folder = copy_for_visit(self.host, "", system.builder.server)
        if service := service_in(self.host, system, folder):
            return service.run(format_command, "prepare", merged=False).removesuffix("\n")
        filled = print_data_format_argv(system, folder)
        who = f"the format of the dataset cannot be determined: {filled[0]}"
        printed = run_to_end(self.host, HostCommand(filled, who, "prepare", SHORT, folder, merged=False, alone=True))
        return printed if not printed or printed.endswith("\n") else f"{printed}\n"

    def _record(self, name: str) -> DatasetRecord | None:
        return _read(self.host.run(["cat", str(pristine_folder(self.host, name) / "dataset.json")], check=False).stdout)

    def _verify_answers(self, system: Installation, name: str) -> None:
        """Run the workload's check with the build's server, on a copy of the data.

        If the answers differ from the recorded answers (the answers after loading), and another build has loaded the
        data, the build loads data itself, to find whether the data or the build is wrong. Raises DatasetDamaged if this
        build gives the recorded answers on the new data, or has loaded the stored data. Raises RunFailed if this build
        gives other answers also on the new data, or if its server does not start.
        """
        if not (self.workload.check and system.builder.server):
            return
        loading = self._loading(system, copy_for_visit(self.host, name, system.builder.server))
        recorded, service = self._record(name), loading.service
        assert recorded and service
        try:
            # An error when the server ends is ignored, because the data may be damaged.
            with run_server(service) as job:
                try:
                    answers = loading.answers_of_check()
                except RunFailed as failure:
                    raise_if_ended(
                        service, job, "during the check of the workload", "run"
                    )  # raises an error if the server ended: then the data is not damaged
                    raise damage_error(self.host, name, str(failure)) from failure
                if answers != recorded.answers:
                    at_first = f"gave {_shown(recorded.answers)} after loading"
                    text = f"the check of the workload gives {_shown(answers)}, but {at_first}"
                    raise damage_error(self.host, name, text)
        except DatasetDamaged:
            if recorded.build == system.key or (reloaded := self._load_and_check(system)) == recorded.answers:
                raise
            answer = f"the check of the workload gives {_shown(reloaded)} on a dataset that the build has loaded itself"
            why = f"{answer}, but gave {_shown(recorded.answers)} with the build that loaded {name}"
            log = str(pristine_folder(self.host, name) / "dataset.json")
            raise RunFailed(why, stage="prepare", log=log) from None

    def remove_damaged(self, key: str, damaged: DatasetDamaged) -> Warned:
        """Remove damaged data, so that the data is loaded again; returns a warning for the user. If data with this key
        was already removed once in this session, raises ``damaged`` instead.
        """
        if key in self._reloaded:
            again = "The dataset was already loaded again in this session"
            damaged.advice = f"{again}, so the disk of host {self.host.name} may be failing."
            raise damaged
        self._reloaded.add(key)
        self._verified.discard(key)
        self.keys = {commit: data_key for commit, data_key in self.keys.items() if data_key != key}
        self.host.run(["rm", "-rf", "--", str(pristine_folder(self.host, key))], timeout=LONG)
        return Warned(f"{damaged}; the dataset is loaded again")

    def mark_dataset_refused(self, system: Installation, key: str, failure: RunFailed) -> bool:
        """Note that the server did not start on data that another build has loaded. Returns whether ``load`` should try
        other data.
        """
        refused = self._refused.setdefault(system.commit, {})
        if not key or failure.stage != "start" or key in refused:
            return False
        if (recorded := self._record(key)) and recorded.build == system.key:
            return False
        refused[key] = failure
        self.keys.pop(system.commit, None)
        return True

    def _check_earlier(self, system: Installation, key: str) -> None:
        earlier_key = self.earlier.get(system.commit, key)
        if earlier_key.partition("-")[0] != key.partition("-")[0]:  # without the build that loaded the data (after "-")
            text = f"{system.commit[:10]} would now run with other settings or other data than earlier in this hunt"
            inputs = f"The recipe of {system.builder.name}, workload {self.workload.name}, hosts.toml or perfbisect"
            advice = f"{inputs} has changed. Undo the change, or begin a new hunt."
            raise UsageError(f"{text}, so earlier and later runs cannot be compared.", advice)
