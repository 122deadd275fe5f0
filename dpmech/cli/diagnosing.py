"""`dpmech doctor`: what is installed, whether it works, and whether this machine computes what it should."""

import importlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from packaging.requirements import Requirement

from dpmech.calibration import calibrate_sigma
from dpmech.cli.commands import Command
from dpmech.cli.options import output_options
from dpmech.cli.running import Run, runs
from dpmech.files import on_one_line
from dpmech.mechanism import Identity
from dpmech.numerics import counted, up
from dpmech.schemes.poisson import Poisson
from dpmech.verifying import verify

_EXTRAS = ("torch", "opacus", "hf", "lightning", "trl", "plots", "dask")
_MODULE = re.compile(r"([A-Za-z]\w*)(?:/__init__\.py|\.py)")
# The noise by an accountant that is not dpmech's (dp_accounting), for eps 1 and delta 1e-5 over 100 steps of
# Poisson sampling of 1 %, and how far above it a calibration may end.
_BUDGET, _RIGHT, _ABOVE = (1.0, 1e-5), 0.9020, 2e-3


def commit() -> str | None:
    """The commit that this version was built from, as far as installation or checkout tell; else None.

    It ends in "-modified" if the files differed from the commit when a wheel was built.
    """
    built = Path(__file__).parents[1] / "commit.txt"  # hatch_build.py writes it into wheels
    if built.is_file():
        return built.read_text(encoding="utf-8").strip()
    told = importlib.metadata.distribution("dpmech").read_text("direct_url.json") or ""
    recorded = re.search(r'"commit_id": *"([0-9a-f]{7,64})"', told)
    return recorded[1] if recorded else head_commit(Path(__file__).parents[2] / ".git")


def head_commit(git: Path) -> str | None:
    """The commit that is checked out, read from the files of git; None where there are none.

    Args:
        git: folder of the repository, or the file that a linked worktree has in its place.
    """
    try:
        if git.is_file():
            git = git.parent / git.read_text(encoding="utf-8").removeprefix("gitdir: ").strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        name = head.removeprefix("ref: ")
        shared = git / "commondir"
        root = git / shared.read_text(encoding="utf-8").strip() if shared.is_file() else git
        if name != head:
            loose, packed = root / name, root / "packed-refs"
            head = (loose if loose.is_file() else packed).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(rf"^([0-9a-f]{{40,64}})(?: {re.escape(name)})?$", head, re.MULTILINE)
    return found[1] if found else None


def version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's callback
    """Print the version, with its commit where it is known, and exit."""
    if asked and not ctx.resilient_parsing:
        click.echo(f"dpmech, version {_version()}")
        ctx.exit()


def _version() -> str:
    built = commit()
    mark = "-modified" if built and built.endswith("-modified") else ""
    return importlib.metadata.version("dpmech") + (f" (commit {built[:12]}{mark})" if built else "")


def _requirements(extra: str = "") -> Iterator[Requirement]:
    """What dpmech itself needs, or what an extra adds to it."""
    for text in importlib.metadata.requires("dpmech") or ():
        one = Requirement(text)
        plain = one.marker is None or one.marker.evaluate({"extra": ""})
        if extra and not plain and one.marker is not None and one.marker.evaluate({"extra": extra}):
            if one.name == "dpmech":
                for other in one.extras:
                    yield from _requirements(other)
            else:
                yield one
        elif plain and not extra:
            yield one


def _state(one: Requirement) -> dict[str, Any]:
    """Version and fault of a package; without a version it is absent, with an empty fault it works."""
    try:
        found = importlib.metadata.distribution(one.name)
    except importlib.metadata.PackageNotFoundError:
        return {"name": one.name, "version": None, "fault": "not installed"}
    fault = "" if one.specifier.contains(found.version, prereleases=True) else f"needs {one.specifier}"
    own = one.name.lower().replace("-", "_")
    modules = {match[1] for file in found.files or () if (match := _MODULE.fullmatch(str(file)))}
    for name in sorted(modules & {own, own.removeprefix("python_")}) or [own]:
        try:
            for part in (name, *sorted(one.extras)):  # dask[distributed] is a module of that name
                importlib.import_module(part)
        except Exception as error:  # noqa: BLE001 - whatever a broken installation raises
            fault = on_one_line(f"import {name}: {type(error).__name__}: {error}")
    return {"name": one.name, "version": found.version, "fault": fault}


def _device() -> str | None:
    """The accelerator that torch sees; None without torch."""
    try:
        import torch
    except Exception:  # noqa: BLE001 - absent or broken: said among the extras
        return None
    if not torch.accelerator.is_available():
        return "cpu: torch sees no accelerator"
    kind = torch.accelerator.current_accelerator()
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return f"{kind} {name}".strip()


def _processor() -> str:
    """Name of the processor, as far as the system tells it; else its architecture."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    found = re.search(r"^model name\s*: *(\S.*)$", told, re.MULTILINE)
    return on_one_line(found[1]) if found else platform.processor() or platform.machine()


def _computed() -> dict[str, Any]:
    """A calibration, compared with another accountant's number, and its certificate, checked."""
    cal = calibrate_sigma(Identity(100), *_BUDGET, participation=Poisson(0.01))
    near = _RIGHT * (1.0 - 1e-4) <= cal.sigma <= _RIGHT * (1.0 + _ABOVE)
    return {"sigma": cal.sigma, "right": _RIGHT, "ok": near and verify(cal.certificate()).ok}


@click.command(
    cls=Command,
    short_help="Check the installation.",
    examples=["dpmech doctor", "dpmech doctor --json"],
)
@output_options
@click.pass_context
@runs("doctor")
def doctor(ctx: click.Context, *, run: Run) -> None:
    """Report which packages and extras work, describe the machine, and reproduce a known result.

    It imports every package, which takes up to half a minute. Exit code 1 if a package that dpmech needs is
    missing, too old or broken, or the result is wrong. Extras may be missing.
    """
    needed = [_state(one) for one in _requirements()]
    extras = {name: [_state(one) for one in _requirements(name)] for name in _EXTRAS}
    computed = _computed()
    ok = computed["ok"] and not any(one["fault"] for one in needed)
    found = {
        "version": importlib.metadata.version("dpmech"),
        "commit": commit(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "processors": os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count(),
        "device": _device(),
        "needed": needed,
        "extras": extras,
        "check": computed,
        "ok": ok,
    }
    run.answer(lambda: found, lambda: _lines(found))
    if not ok:
        ctx.exit(1)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    cores = f"{counted(found['processors'] or 1, 'processor')} ({found['processor']})"
    machine = f"{found['system']}, {cores}"
    yield f"dpmech {_version()}, {found['python']}, {machine}"
    for one in found["needed"]:
        yield f"  {_told(one)}"
    yield "extras:"
    for name, packages in found["extras"].items():
        faults = [one for one in packages if one["fault"]]
        if faults:
            absent = all(one["version"] is None for one in faults)
            way = f"; from a checkout: pip install '.[{name}]'" if absent else ""
            yield f"  {name}: no: {'; '.join(_told(one) for one in faults)}{way}"
        else:
            yield f"  {name}: works: {', '.join(_told(one) for one in packages)}"
    if found["device"] is not None:
        yield f"device: {found['device']}"
    check = found["check"]
    state = "as it should be" if check["ok"] else f"WRONG: another accountant has {check['right']}"
    yield f"check: sigma {up(check['sigma'], 6)} for a known plan, and its certificate: {state}"
    yield "dpmech works" if found["ok"] else "dpmech does NOT work here"


def _told(one: dict[str, Any]) -> str:
    version = f" {one['version']}" if one["version"] else ""
    fault = f": {one['fault']}" if one["fault"] else ""
    return f"{one['name']}{version}{fault}"
