"""Source packages of Debian or its kin, as apt brings them from where this machine's packages come from."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

HOME = os.environ.get("HOME", "")  # the tests' own home is empty, and forgotten
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or f"{HOME}/.cache") / "perfbisect-tests" / "source-packages"
LISTED = Path("/etc/apt")


class Absent(Exception):
    """The source package cannot be had here; the reason is in words for whoever reads that a test is skipped."""


def unpack(name: str, folder: Path) -> None:
    """Make ``folder`` the unpacked source package: Debian's patches applied. Downloaded once, and kept for later tests."""
    for program, package in (("apt-get", "apt"), ("dpkg-source", "dpkg-dev")):
        if shutil.which(program) is None:
            raise Absent(f"{program} is not installed; where there is apt: apt-get install {package}")
    if not list(KEPT.glob(f"{name}/*.dsc")):
        _download(name)
    [description] = KEPT.glob(f"{name}/*.dsc")
    _run("dpkg-source", "--no-check", "-x", str(description), str(folder), check=True)


def _download(name: str) -> None:
    """Download the newest version that is to be had: lists may tell of more than there is."""
    apt = _apt_of_its_own()
    _run("apt-get", *apt, "update")
    said = _run("apt-cache", *apt, "showsrc", "--only-source", name).stdout
    partial = KEPT / f"{name}.{os.getpid()}"
    for version in reversed(re.findall(r"^Version: (\S+)", said, re.MULTILINE)):
        partial.mkdir(parents=True)
        done = _run("apt-get", *apt, "source", "--download-only", "--only-source", f"{name}={version}", cwd=partial)
        if done.returncode == 0 and list(partial.glob("*.dsc")):
            with suppress(OSError):  # another run has just brought it
                partial.rename(KEPT / name)
            return
        shutil.rmtree(partial)
    raise Absent(f"apt does not bring the source package {name} here")


def _apt_of_its_own() -> list[str]:
    """Options for an apt that knows the source packages of this machine's sources, and leaves the machine as it is."""
    own = KEPT / "apt"
    for folder in ("sources", "lists/partial", "cache/archives/partial"):
        (own / folder).mkdir(parents=True, exist_ok=True)
    for file in (LISTED / "sources.list", *LISTED.glob("sources.list.d/*")):
        if file.suffix in (".list", ".sources") and file.exists():
            text = re.sub(r"^(Types:).*|^deb(?= )", _source, file.read_text(), flags=re.MULTILINE)
            (own / "sources" / file.name).write_text(text)
    settings = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": own / "sources",
        "Dir::State::Lists": own / "lists",
        "Dir::Cache": own / "cache",
        "APT::Sandbox::User": "",
    }
    return ["-qq", *(f"-o{name}={value}" for name, value in settings.items())]


def _source(found: re.Match[str]) -> str:
    return "Types: deb-src" if found[1] else "deb-src"


def _run(*argv: str, cwd: Path | None = None, check: bool = False) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=600, check=check)
    except subprocess.TimeoutExpired as late:
        raise Absent(f"{argv[0]} does not come to an end here") from late
