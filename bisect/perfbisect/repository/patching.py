"""Patches, applied to commits without a checkout: from a commit and a patch git makes another commit.

That happens in an index of its own. So a patch cannot leave the tree, follow a link, or meet a file that a build made.
git takes no patch that needs a guess: its lines must be there, though other lines may stand before them.
"""

import base64
import re
import subprocess
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.repository.git import run, sealed

# $1 a bare repository that perfbisect has made, $2 a commit; stdin is the patch in base64. Prints the hash of the commit
# with the patch, or on several lines why git does not apply it. git looks first without writing: what fails then is the
# patch, and what fails later is the host. The index has a fixed name, so that a script that was
# killed leaves nothing behind that the next one does not remove.
APPLY = """\
GIT_INDEX_FILE=$1/perfbisect.index
export GIT_INDEX_FILE GIT_AUTHOR_NAME=perfbisect GIT_AUTHOR_EMAIL=perfbisect GIT_AUTHOR_DATE='@0 +0000'
export GIT_COMMITTER_NAME=perfbisect GIT_COMMITTER_EMAIL=perfbisect GIT_COMMITTER_DATE='@0 +0000'
rm -f "$GIT_INDEX_FILE" "$GIT_INDEX_FILE.lock"
git --git-dir="$1" read-tree "$2" || exit
patch=$(cat) bare=$1
apply() { printf '%s' "$patch" | base64 -d | git --git-dir="$bare" apply --cached --whitespace=nowarn "$@"; }
if why=$(apply --check 2>&1); then
    apply && tree=$(git --git-dir="$1" write-tree --missing-ok) || exit
    git --git-dir="$1" commit-tree -p "$2" -m 'with a patch' "$tree" || exit
else
    status=$?
    [ $status -le 128 ] || exit $status
    printf 'refused\\n%s\\n' "$why"
fi
rm -f "$GIT_INDEX_FILE"
"""


def encoded(content: bytes) -> str:
    """A patch as the script reads it."""
    return base64.b64encode(content).decode()


def outcome(printed: str) -> tuple[str, str]:
    """What the script printed: the new commit, or "" and git's first reason."""
    first, _, rest = printed.partition("\n")
    return ("", reason(rest)) if first == "refused" else (first.strip(), "")


def reason(said: str) -> str:
    """The first reason in what `git apply` has said."""
    found = re.search(r"^(?:error|fatal): (.+)$", said, re.MULTILINE)
    return found[1] if found else "git gives no reason"


def apply(bare: Path, commit: str, content: bytes) -> tuple[str, str]:
    """A commit with a patch, or "" and git's first reason; ``bare`` is a repository as of ``borrowed``."""
    done = subprocess.run(
        ["sh", "-c", APPLY, "apply", str(bare), commit],
        cwd=bare,
        env=sealed(),
        input=encoded(content),
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    return outcome(done.stdout) if done.returncode == 0 else ("", reason(done.stderr))


def paths_of(bare: Path, name: str, content: bytes) -> list[str]:
    """The paths that a patch changes. Raises UsageError for what is no patch."""
    text = content.decode(errors="surrogateescape")
    done = run([f"--git-dir={bare}", "apply", "--numstat", "-z"], bare, sealed(), text, errors="surrogateescape")
    if done.returncode:
        raise UsageError(
            f"{name} is not a patch that git can read: {reason(done.stderr)}.",
            "It takes what `git diff` or `git format-patch --stdout` prints.",
        )
    return [line.split("\t", 2)[2] for line in done.stdout.split("\0") if line.count("\t") >= 2]
