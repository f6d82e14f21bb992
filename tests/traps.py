"""Repositories whose configuration runs programs that leave a trace."""

import subprocess
from pathlib import Path

HOOKS = ("post-checkout", "post-index-change", "pre-auto-gc", "pre-push", "push-to-checkout", "reference-transaction",
         "pre-receive", "update", "post-receive", "post-update", "proc-receive", "fsmonitor-watchman",
         "post-merge", "pre-commit")  # fmt: skip


class Trap:
    """Programs that leave their name in a folder which should stay empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o777)

    def command(self, name: str) -> str:
        """A command line that leaves ``name``, and does nothing else."""
        return f"touch {self.folder}/{name}; :"

    @property
    def sprung(self) -> list[str]:
        """The names of the programs that ran."""
        return sorted(path.name for path in self.folder.iterdir())

    def hooks(self, folder: Path) -> Path:
        """All hooks, in a folder."""
        folder.mkdir(exist_ok=True, parents=True)
        for name in HOOKS:
            hook = folder / name
            hook.write_text(f"#!/bin/sh\n{self.command(f'hook-{name}')}\n")
            hook.chmod(0o755)
        return folder

    def settings(self, hooks: Path) -> dict[str, str]:
        """Every setting that makes some git command run a program, and what brings git to use it."""
        remote = f"ext::sh -c touch% {self.folder}/remote"
        return {
            "core.fsmonitor": self.command("fsmonitor"),
            "core.hooksPath": str(hooks),
            "core.sshCommand": self.command("ssh"),
            "core.gitProxy": self.command("proxy"),
            "core.pager": self.command("pager"),
            "core.editor": self.command("editor"),
            "core.askPass": self.command("askpass"),
            "core.alternateRefsCommand": self.command("alternates"),
            "credential.helper": f"!{self.command('credential')}",
            "gpg.program": self.command("gpg"),
            "push.gpgSign": "true",
            "push.negotiate": "true",
            "push.pushOption": "anything",
            "push.recurseSubmodules": "on-demand",
            "push.followTags": "true",
            "log.showSignature": "true",
            "diff.external": self.command("diff-external"),
            "diff.evil.command": self.command("diff-command"),
            "diff.evil.textconv": self.command("textconv"),
            "merge.evil.driver": self.command("merge"),
            "uploadpack.packObjectsHook": self.command("pack-objects"),
            "protocol.ext.allow": "always",
            "protocol.allow": "always",
            "extensions.partialClone": "evil",
            "remote.evil.promisor": "true",
            "remote.evil.url": remote,
            "remote.pushDefault": "evil",
            f"url.{remote}.insteadOf": "fd::",
            f"url.{remote}x.pushInsteadOf": "fd::",
            **{f"filter.{name}.{key}": self.command(f"filter-{key}")
               for name in ("evil", "", "a.b", "e vil") for key in ("clean", "smudge", "process")},
            **{f"filter.{name}.required": "true" for name in ("evil", "", "a.b", "e vil")},
            **{f"alias.{name}": f"!{self.command(f'alias-{name}')}"
               for name in ("rev-parse", "rev-list", "status", "cat-file", "push", "config", "receive-pack")},
            **{f"pager.{name}": self.command(f"pager-{name}") for name in ("rev-list", "config", "status", "push")},
        }  # fmt: skip

    def arm(self, git_dir: Path) -> None:
        """Write all of it into a repository's configuration, a part through a file that it includes."""
        included = git_dir / "more"
        for number, (name, value) in enumerate(self.settings(self.hooks(git_dir / "hooks")).items()):
            config = included if number % 2 else git_dir / "config"
            subprocess.run(["git", "config", "--file", config, name, value], check=True)
        subprocess.run(["git", "config", "--file", git_dir / "config", "include.path", included], check=True)
        (git_dir / "info").mkdir(exist_ok=True)
        (git_dir / "info" / "attributes").write_text(
            '*.c filter=evil diff=evil merge=evil\n*.h filter=a.b\n*.i filter="e vil"\n'
        )
