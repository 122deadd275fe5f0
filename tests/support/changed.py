"""Names the tests that matter for what differs from the last commit (or for that commit, if nothing does)."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# These hold whatever was changed.
ALWAYS = ("tests/test_package.py", "tests/regression")


def changed(root: Path = ROOT) -> list[str]:
    """Files that differ from HEAD, new ones included; those of HEAD itself where none does."""
    differing = _git(root, "diff", "--name-only", "HEAD")
    differing += _git(root, "ls-files", "--others", "--exclude-standard")
    return differing or _git(root, "diff", "--name-only", "HEAD~1", "HEAD")


def selected(files: list[str], root: Path = ROOT) -> list[str]:
    """Tests of some files: themselves, the mirrored module or else its folder; and what always runs."""
    chosen = set(ALWAYS)
    for name in files:
        path = Path(name)
        if name.startswith("tests/") and path.name.startswith("test_") and path.parts[1] != "bench":
            chosen.add(name)
        elif name.startswith("dpmech/") and path.suffix == ".py":
            mirrored = Path("tests/unit", *path.parts[1:-1], f"test_{path.name}")
            chosen.add(str(mirrored if (root / mirrored).exists() else _nearest(mirrored.parent, root)))
        elif name.startswith("verification/"):
            chosen.add("tests/test_verification.py")
        elif name.endswith(".md"):
            chosen |= {f"tests/test_{one}.py" for one in ("blocks", "front_door", "pages", "readme")}
    return sorted(name for name in chosen if (root / name).exists())


def _nearest(folder: Path, root: Path) -> Path:
    """The folder, or the nearest one above it that is there; of the packages' common folder its own files."""
    while not (root / folder).is_dir():
        folder = folder.parent
    return folder if folder != Path("tests/unit") else Path("tests/unit/test_calibration.py")


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.split()


if __name__ == "__main__":
    sys.stdout.write(" ".join(selected(changed())) + "\n")
