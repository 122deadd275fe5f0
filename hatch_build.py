"""The build hook: wheels and source archives know the commit that they were built from."""

import pathlib
import subprocess
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Where the package looks for it, see `dpmech.cli.diagnosing.commit`.
TARGET = "dpmech/commit.txt"


class CommitHook(BuildHookInterface):
    """Adds a file with the commit; none where there is no git, as in a source archive that has the file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the commit outside of the checkout, and have it included.

        Args:
            version: of the target; an editable installation reads its checkout instead.
            build_data: what is built.
        """
        found = None if version == "editable" else self._commit()
        if found is None or (pathlib.Path(self.root) / TARGET).exists():
            return
        path = pathlib.Path(tempfile.mkdtemp()) / "commit.txt"
        path.write_text(f"{found}\n", encoding="utf-8")
        # Equal commits give equal bytes: hatchling sets the times of all files, and not their modes.
        path.chmod(0o644)
        build_data["force_include"][str(path)] = TARGET

    def _commit(self) -> str | None:
        """The commit, marked if what is built differs from it; None if git does not know."""
        if not (pathlib.Path(self.root) / ".git").exists():
            return None  # git would tell the commit of a repository around it
        try:
            head = self._git("rev-parse", "HEAD")
            changed = self._git("status", "--porcelain", "--", "dpmech", "pyproject.toml", "README.md")
        except (OSError, subprocess.CalledProcessError):
            return None
        return f"{head}-modified" if changed else head

    def _git(self, *command: str) -> str:
        told = subprocess.run(
            ["git", "-C", self.root, *command], capture_output=True, text=True, check=True, timeout=60
        )
        return told.stdout.strip()
