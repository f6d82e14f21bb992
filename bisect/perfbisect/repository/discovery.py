"""Finds the repository at a path, clones the repository of a recipe into the user's cache, and downloads archives into
this cache.

git refuses a repository of another user unless ``safe.directory`` allows it. But git makes this check only if git
itself searches for the repository, not if the option ``--git-dir`` names it. So perfbisect first asks git, without
``--git-dir``, for the path of the repository.

The checksum of each archive is in the recipe. An interrupted download is continued. A downloaded file gets its final
name only after a check of its checksum.
"""

import fcntl
import hashlib
import re
import shlex
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.folders import cache_folder
from perfbisect.repository.commits import commits_of_names, possible_tags
from perfbisect.repository.git import (
    NO_WORK_TREE,
    Repository,
    config_value,
    git,
    git_failure,
    local_environment,
    printable_path,
    remote_environment,
    run_git,
    run_with_progress,
)

if TYPE_CHECKING:
    from perfbisect.recipes.builder import Builder

_TAKES = "Give the folder of a git repository with --repo."

_READ = {  # file or setting → a git command that only tests whether git can read it
    "packed-refs": ["rev-parse", "-q", "--verify", "refs/perfbisect/none"],
    "objects/info/alternates": ["cat-file", "-e", "1" * 40],
    "core.attributesFile": ["check-attr", "text", "none"],
    "core.excludesFile": ["check-ignore", "-q", "--no-index", "none"],
}


def open_repository(path: Path, *, is_named_by_user: bool = True, allow_shallow: bool = False) -> Repository:
    """The repository at ``path`` or in a folder above ``path``. The repository may be bare.

    ``is_named_by_user`` says that the user has named the path; the path may then be a bare repository even if git's
    setting ``safe.bareRepository`` is "explicit". Raises UsageError if there is no repository, if the repository is a
    shallow clone and ``allow_shallow`` is false, or if the path is not UTF-8. Raises EnvironmentFailure if git refuses
    the repository, for instance because it belongs to another user.
    """
    _check_is_utf8(path)
    folder = path.expanduser()
    if not folder.is_dir():
        raise UsageError(f"The folder {printable_path(path)} does not exist.", _TAKES)
    is_git_dir = all((folder / name).exists() for name in ("HEAD", "objects", "refs"))
    explicit = ["-c", "safe.bareRepository=all"] if is_named_by_user and is_git_dir else []
    git_dir = Path(_git_answer(folder, [*explicit, NO_WORK_TREE, "rev-parse", "--absolute-git-dir"]).removesuffix("\n"))
    _check_is_utf8(git_dir)
    for reads, arguments in _READ.items():
        run_git([f"--git-dir={git_dir}", NO_WORK_TREE, *arguments], git_dir, local_environment(), may_wait_for=reads)
    of_it = ["rev-parse", "--is-shallow-repository", "--show-object-format", "--git-path", "objects"]
    answer = _git_answer(git_dir, [f"--git-dir={git_dir}", NO_WORK_TREE, *of_it])
    is_shallow, object_format, objects = answer.split("\n", 2)
    if is_shallow == "true" and not allow_shallow:
        text = f"{path} is a shallow clone: a part of its history is missing."
        raise UsageError(text, f"Fetch the whole history: git -C {shlex.quote(str(path))} fetch --unshallow")
    # git before 2.29, which has only sha1, prints the unknown option itself.
    object_format = "sha1" if object_format.startswith("--") else object_format
    object_folder = (git_dir / objects.removesuffix("\n")).resolve()
    return Repository(git_dir, object_folder, object_format, _enclosing_work_tree(folder, git_dir))


def is_partial_clone(repo: Repository) -> bool:
    """Whether a repository was cloned with ``--filter``, so that objects may be missing."""
    promisors = r"^remote\..*\.(promisor|partialclonefilter)$"
    return bool(git(repo, "config", "--get-regexp", promisors, allowed=(0, 1)))


def _enclosing_work_tree(folder: Path, git_dir: Path) -> Path | None:
    """The work tree that contains ``folder``; None if no work tree contains it, or if the work tree does not belong to
    ``git_dir``. The check is needed because ``core.worktree`` may name any folder.
    """
    done = run_git(["rev-parse", "--show-toplevel"], folder, local_environment(), errors="surrogateescape")
    top = Path(done.stdout.removesuffix("\n"))
    if done.returncode or not (top / ".git").exists():
        return None
    _check_is_utf8(top)
    back = run_git(["rev-parse", "--absolute-git-dir"], top, local_environment(), errors="surrogateescape")
    return top if back.stdout == f"{git_dir}\n" else None


def _check_is_utf8(path: Path) -> None:
    """Raise UsageError for a path that is not UTF-8, which a history or a report cannot contain."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        text = f"The path of the repository {printable_path(path)} is not UTF-8."
        raise UsageError(text, "Rename the folder, or clone the repository.") from None


def _git_answer(folder: Path, arguments: list[str]) -> str:
    config = "its configuration, or a file that the configuration includes"
    done = run_git(arguments, folder, local_environment(), errors="surrogateescape", may_wait_for=config)
    if done.returncode == 0:
        return done.stdout
    if "fatal: not a git repository (or any" in done.stderr:
        raise UsageError(f"{printable_path(folder)} is not a git repository.", _TAKES)
    raise git_failure(f"{printable_path(folder)} cannot be used", done.stderr)


def has_uncommitted_changes(repo: Repository) -> bool:
    """Whether the user's checkout has uncommitted changes of tracked files; false if the repository has no checkout.

    Filters (``filter.NAME.clean``) are programs that the configuration of the repository may name, so filters are not
    run. Therefore a file with a filter counts as unchanged.
    """
    if repo.work_tree is None:
        return False
    # The names of filters that any configuration defines.
    keys = git(repo, "config", "-z", "--name-only", "--get-regexp", r"^filter\..*\.", allowed=(0, 1)).split("\0")
    names = {key.removeprefix("filter.").rpartition(".")[0] for key in keys if key}
    if any("=" in name for name in names):  # git's option -c cannot set such a name
        return False
    off = [f"filter.{name}.{key}" for name in names for key in ("clean=", "smudge=", "process=", "required=false")]
    options = [*(word for setting in off for word in ("-c", setting)), f"--work-tree={repo.work_tree}"]
    # Submodules are repositories with other configurations, which git would use. Only their commits are built.
    look = ["status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=all"]
    changed = [entry[3:] for entry in git(repo, *look, options=options).split("\0") if entry]
    if not changed:
        return False
    ask = ["check-attr", "-z", "--stdin", "filter"]  # prints path, attribute and value of each file
    answers = git(repo, *ask, options=options, stdin="\0".join(changed)).split("\0")
    return any(value in ("unspecified", "unset") for value in answers[2::3])


Progress = Callable[[str, int, int], None]  # activity of git, finished steps, all steps

# A clone has only branches and tags, because pull requests, which some servers also offer, can be larger than the
# history.
REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


def clone_path(builder: str) -> Path:
    """The path at which the clone of a builder's repository is stored. The clone need not exist yet."""
    return cache_folder() / "repositories" / f"{builder}.git"


def cached_clone(builder: "Builder", revisions: Sequence[str] = (), progress: Progress | None = None) -> Path:
    """The path of a local bare clone of the recipe's repository.

    The clone fetches new commits if one of ``revisions`` is missing in the clone, or is a branch, because the branch
    may have moved. Raises UsageError if the recipe names no repository, and EnvironmentFailure if the repository cannot
    be reached.
    """
    if not builder.repository:
        text = f"Builder {builder.name} has no URL of a repository."
        raise UsageError(text, "Give a local clone with --repo FOLDER.")
    path = clone_path(builder.name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # git stores the address, which may contain a password
    with download_lock(path.with_suffix(".lock")):
        url, partial = builder.repository, path.with_suffix(".partial")
        if not path.exists():  # an incomplete clone has the name ``partial``
            shutil.rmtree(partial, ignore_errors=True)
            try:
                clone = ["clone", "--bare", "--progress", "--origin=origin", "--template="]
                _run_git_with_progress(f"{url} cannot be cloned", [*clone, "--", url, str(partial)], progress)
                partial.rename(path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        elif _needs_fetch(path, builder, revisions):
            fetch = [f"--git-dir={path}", "fetch", "--progress", "--prune", "--no-tags", "--no-write-fetch-head"]
            _run_git_with_progress(f"{url} cannot be fetched", [*fetch, "--", url, *REFS], progress)
            arguments = [f"--git-dir={path}", "config", "remote.origin.url", url]
            _run_git_with_progress(f"{path} cannot be written", arguments, None)
    return path


@contextmanager
def download_lock(lock: Path) -> Iterator[None]:
    """A lock that only one process can hold, so that a second process waits until the download of the first process has
    ended."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _needs_fetch(path: Path, builder: "Builder", revisions: Sequence[str]) -> bool:
    repo = open_repository(path)
    if config_value(repo, "remote.origin.url") != builder.repository:
        return True
    for revision in revisions:
        fixed = [f"refs/tags/{tag}" for tag in (*possible_tags(revision, builder.release_tags), revision)]
        if re.fullmatch("[0-9a-f]{7,}", revision):
            fixed.append(revision)
        if not any(commits_of_names(repo, fixed)):
            return True
    return False


def _run_git_with_progress(what: str, arguments: Sequence[str], progress: Progress | None) -> None:
    for step in run_with_progress(what, arguments, remote_environment()):
        if progress:
            progress(*step)


MB = 1_000_000
CHUNK = 1 << 20  # bytes of one read
MAX_BYTES = 10_000 * MB  # most bytes of an archive
SILENCE = 60.0  # seconds without a byte after which a download has failed


def download(name: str, address: str, sha256: str) -> Generator[tuple[int, int], None, Path]:
    """The path of the file with the checksum ``sha256`` in the cache. If the file is missing, it is downloaded from
    ``address``. During the download, yields pairs (downloaded megabytes, megabytes of the whole file).

    Raises EnvironmentFailure if the file cannot be downloaded or has another checksum; the advice is the command by
    which the user can copy the file into the cache.
    """
    from http.client import HTTPException

    folder, file = cache_folder() / "archives", address.rpartition("/")[2]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, part = folder / file, folder / f"{file}.{sha256[:8]}.part"
    with download_lock(folder / "lock"):
        if (digest := _file_sha256(path)) != sha256:
            present = f"The file in {folder} has the checksum {digest}. " if digest else ""
            by_hand = f"{present}To copy the file there yourself: `cp {shlex.quote(file)} {shlex.quote(str(folder))}/`."
            try:
                digest = yield from _download_rest_and_hash(address, sha256, part)
            except (OSError, HTTPException, ValueError) as error:
                cause = getattr(error, "reason", error)
                why = getattr(cause, "strerror", "") or cause
                raise EnvironmentFailure(f"{name} cannot be fetched from {address}: {why}", by_hand) from error
            if digest != sha256:
                part.unlink()
                sentence = f"{name} is not used: the file at {address} has the SHA-256 sum {digest}, but the recipe has {sha256}"
                raise EnvironmentFailure(sentence, by_hand)
            part.rename(path)
    return path


def _download_rest_and_hash(address: str, sha256: str, partial: Path) -> Generator[tuple[int, int], None, str]:
    """Download the bytes of the file at ``address`` that ``partial`` still lacks, append them to ``partial``, and
    return its checksum.

    Raises OSError, HTTPException or ValueError if the download stops, or if the server sends other contents than the
    file.
    """
    from http.client import REQUESTED_RANGE_NOT_SATISFIABLE, HTTPException
    from urllib.error import HTTPError  # a slow import, and most verbs need no archive

    while True:
        size = _file_size(partial)
        try:
            yield from _append_download(address, partial)
        except (OSError, HTTPException, ValueError) as error:
            full = False
            if isinstance(error, HTTPError):
                error.close()  # an HTTPError is also a response, which keeps its connection open
                full = error.code == REQUESTED_RANGE_NOT_SATISFIABLE
            if _file_size(partial) > size:
                continue
            if not (size and full):
                raise
        if (digest := _file_sha256(partial)) == sha256 or not size:
            return digest
        partial.unlink()  # the download starts again: the first part may be of another file


def _append_download(address: str, part: Path) -> Generator[tuple[int, int]]:
    from http.client import PARTIAL_CONTENT, HTTPException
    from urllib.request import Request, urlopen

    headers = {"User-Agent": "perfbisect"} | ({"Range": f"bytes={size}-"} if (size := _file_size(part)) else {})
    yield 0, 0
    with (
        urlopen(Request(address, headers=headers), timeout=SILENCE) as answer,
        part.open("ab" if answer.status == PARTIAL_CONTENT else "wb") as file,
    ):
        total = file.tell() + int(answer.headers.get("Content-Length", 0))
        while chunk := answer.read(CHUNK):
            if file.tell() + len(chunk) > MAX_BYTES:
                raise HTTPException(f"the file has more than {MAX_BYTES // MB:,} MB")
            file.write(chunk)
            yield file.tell() // MB, total // MB
        if file.tell() < total:
            raise HTTPException(f"{total - file.tell()} of {total} bytes are missing")


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _file_sha256(path: Path) -> str:
    """The sha256 of a file; "" if the file does not exist."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
