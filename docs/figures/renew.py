"""Every figure and table of numbers on the pages, from its script, and which numbers moved.

Run as `python docs/figures/renew.py FOLDER [NAME ...]`: the scripts named (by
default all) write into the folder; then every number is compared with the one
on the pages, and what moved by more than its tolerance is printed. A run that
was stopped goes on with what the folder has. With `--write` the new files
replace those of the pages. `--list` prints the scripts, what they write and how
long they take. `tests/bench/test_bench_clipping.py`, which measures times only,
runs by itself.

Exit code 1 says that a number moved.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

FIGURES = pathlib.Path(__file__).parent
DOCS = FIGURES.parent


@dataclasses.dataclass(frozen=True)
class Figure:
    """A script and what it writes.

    Attributes:
        script: below docs/.
        minutes: of one core.
        files: that it writes.
        tolerance: relative; what rests on samples moves from run to run.
    """

    script: str
    minutes: float
    files: tuple[str, ...]
    tolerance: float = 1e-3


FOUND = {
    pathlib.PurePath(one.script).stem: one
    for one in (
        Figure(
            "figures/explained.py", 0.1, ("bins.png", "correlated_noise.png")
        ),
        Figure("figures/audit_power.py", 5, ("audit_power.txt",)),
        Figure(
            "figures/bins_map.py",
            35,
            ("bins_map.json", "bins_map.txt"),
            0.012,
        ),
        Figure("figures/allocation_moments.py", 2, ("allocation_moments.txt",)),
        Figure(
            "figures/random_allocation_peers.py",
            3,
            ("random_allocation_peers.json", "random_allocation_peers.txt"),
        ),
        Figure(
            "figures/tradeoff_curves.py",
            10,
            ("tradeoff_curves.json", "tradeoff_curves.png"),
            0.02,
        ),
        Figure(
            "examples/error_against_eps.py",
            20,
            (
                "error_against_eps.json",
                "error_against_eps.txt",
                "error_against_eps.png",
            ),
            0.012,
        ),
        Figure(
            "examples/which_strategy.py",
            40,
            ("which_strategy.json", "which_strategy.txt"),
            0.012,
        ),
        Figure(
            "examples/family_gaps.py",
            10,
            ("family_gaps.json", "family_gaps.txt", "family_gaps_large.txt"),
            0.012,
        ),
        Figure(
            "examples/least_errors.py",
            10,
            ("least_errors.json", "least_errors.txt"),
        ),
        Figure(
            "examples/side_by_side.py",
            5,
            ("side_by_side.json", "side_by_side.txt"),
        ),
        Figure(
            "examples/accuracy_study.py",
            60,
            (
                "accuracy_study.json",
                "accuracy_study.txt",
                "accuracy_study_optimizers.txt",
            ),
            0.05,
        ),
        Figure(
            "examples/digits_comparison.py",
            10,
            ("digits_comparison.txt", "digits_comparison.png"),
            0.05,
        ),
        Figure(
            "examples/noise_share_controls.py",
            4,
            ("noise_share_controls.json", "noise_share_controls.txt"),
            0.05,
        ),
        Figure(
            "examples/lambda_sweep.py",
            10,
            ("lambda_sweep.json", "lambda_sweep.txt", "lambda_sweep_once.txt"),
            0.05,
        ),
        Figure(
            "examples/denoising_speedup.py",
            10,
            ("denoising_speedup.json", "denoising_speedup.txt"),
            0.05,
        ),
    )
}
# Seconds differ from machine to machine: they are renewed, not compared, and so
# is the commit.
_TIMES = re.compile(r"seconds|time|cpu|commit", re.IGNORECASE)


def numbers(name: str, value: object) -> Iterator[tuple[str, float | str]]:
    """Name and value of every number and word of parsed JSON, but times."""
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            if not (
                isinstance(key, str) and _TIMES.fullmatch(key.split("_")[-1])
            ):
                yield from numbers(f"{name} / {key}", one)
    elif isinstance(value, int | float | str):
        yield name, value


def cells(name: str, text: str) -> Iterator[tuple[str, float | str]]:
    """The same of a table in Markdown: a cell is named by its row and column."""
    head, _, *rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    seen: dict[str, int] = {}
    for row in rows:
        for column, cell in zip(head[1:], row[1:], strict=False):
            if _TIMES.search(column):
                continue
            place = f"{name} / {row[0]} / {column}"
            seen[place] = seen.get(place, 0) + 1
            try:
                yield f"{place} {seen[place]}", float(cell)
            except ValueError:
                yield f"{place} {seen[place]}", cell


def read(path: pathlib.Path) -> dict[str, float | str]:
    """What a file says, by name."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return dict(numbers(path.name, json.loads(text)))
    return dict(cells(path.name, text))


def moved(
    old: dict[str, float | str], new: dict[str, float | str], tolerance: float
) -> list[str]:
    """A line for each number that differs by more than the tolerance."""
    lines = []
    for name in [*old, *(one for one in new if one not in old)]:
        before, after = old.get(name, "nothing"), new.get(name, "nothing")
        if isinstance(before, str) or isinstance(after, str):
            if before != after:
                lines.append(f"{name}: {before} -> {after}")
        elif abs(after - before) > tolerance * max(abs(before), abs(after)):
            change = f" ({100 * (after / before - 1):+.2f} %)" if before else ""
            lines.append(f"{name}: {before:.6g} -> {after:.6g}{change}")
    return lines


def renew(name: str, folder: pathlib.Path) -> list[str]:
    """Run a script; what moved."""
    figure = FOUND[name]
    subprocess.run(
        [sys.executable, str(DOCS / figure.script), str(folder)], check=True
    )
    lines = []
    for file in figure.files:
        if pathlib.PurePath(file).suffix in {".json", ".txt"}:
            lines += moved(
                read(FIGURES / file), read(folder / file), figure.tolerance
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Renew what is named."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args(arguments)
    if given.list:
        for name, figure in FOUND.items():
            print(f"{name}: {figure.minutes:g} min, {', '.join(figure.files)}")
        return 0
    if given.folder is None:
        parser.error("a folder to write into")
    if unknown := sorted(set(given.names) - set(FOUND)):
        parser.error(
            f"NAME must be one of {', '.join(FOUND)}, got {', '.join(unknown)}"
        )
    given.folder.mkdir(parents=True, exist_ok=True)
    changed = False
    for name in given.names or FOUND:
        lines = renew(name, given.folder)
        changed = changed or bool(lines)
        print("\n".join(lines) if lines else f"{name}: no number moved")
        if given.write:
            for file in FOUND[name].files:
                shutil.copyfile(given.folder / file, FIGURES / file)
    return int(changed)


if __name__ == "__main__":
    sys.exit(main())
