"""What the library says of every plan, kept in `values.json`, and what has moved since."""

import dataclasses
import importlib.metadata
import json
import math
import pathlib
import platform
import subprocess
import time

import numpy as np

from tests.regression.library import answer
from tests.regression.plans import EVERY, REFUSED, question
from verification.faults._plans import PLANS

__all__ = ["FILE", "Answer", "Moved", "asked", "computed", "loaded", "moved", "parts", "saved", "tolerance"]

FILE = pathlib.Path(__file__).with_name("values.json")
ROOT = pathlib.Path(__file__).parents[2]
RTOL = 1e-9
# Other processors and versions round sums in another order, which searches that end early, and programs that
# are solved in steps, make larger: without AVX-512 one of the numbers moved by 2.4e-6.
ELSEWHERE = 1e-4
# What the quick test computes takes this long together, by the seconds in the file: the cheapest come first.
QUICK_SECONDS = 14.0
# With what only the slow test computes.
ALL_SECONDS = 285.0
# Seconds are written anew where they are off by more than this factor: else every renewal would change them.
_ABOUT = 3.0
_PACKAGES = ("numpy", "scipy", "numba", "python-flint", "dp-accounting", "prv-accountant")

Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer: numbers by name, how sure they are or why there are none, and what it took."""

    numbers: dict[str, float]
    sure: str | None
    seconds: float

    @property
    def sampled(self):
        """Whether random numbers were drawn for it."""
        return (self.sure or "").startswith(("probable", "estimate"))


@dataclasses.dataclass(frozen=True)
class Moved:
    """A number, a guarantee or a whole answer that is not what it was."""

    key: Key
    what: str
    old: object
    new: object
    sampled: bool = False

    @property
    def change(self):
        """New over old, less one; infinite where that says nothing."""
        if isinstance(self.old, float) and isinstance(self.new, float) and self.old:
            return self.new / self.old - 1.0
        return math.inf

    def __str__(self):
        how = f" ({self.change:+.2e} relative)" if math.isfinite(self.change) else ""
        drawn = " [sampled]" if self.sampled else ""
        return f"{' | '.join(self.key)}: {self.what}: {self.old!r} -> {self.new!r}{how}{drawn}"


def _shared_sigma(plan):
    """Of a plan against which faults are planted."""
    found = plan.calibrate()
    numbers = {"sigma": found.sigma, "lower": found.achieved.lower, "upper": found.achieved.upper}
    return numbers, found.guarantee.kind.name.lower()


def asked():
    """Everything that is asked: (plan, question) in words, and what answers."""
    found = {}
    for plan in (*EVERY.values(), *REFUSED.values()):
        for one in plan.asks:
            found[plan.name, question(one)] = lambda plan=plan, one=one: answer(plan, one)
    for name, plan in PLANS.items():
        found[f"faults: {name}", "sigma"] = lambda plan=plan: _shared_sigma(plan)
    return found


def computed(make):
    """The answer of today, with what it took: of two times the shorter, since the first may compile."""
    seconds = math.inf
    for _ in range(2):
        start = time.process_time()
        numbers, sure = make()
        seconds = min(seconds, time.process_time() - start)
        if seconds > 0.5:
            break
    return Answer(numbers, sure, seconds)


def tolerance(path=FILE):
    """How close numbers have to be: RTOL where they were computed, ELSEWHERE on other machines."""
    written = json.loads(path.read_text(encoding="utf-8"))["versions"]
    return RTOL if written == _versions() else ELSEWHERE


def moved(key, old, new, rtol=RTOL):
    """What of an answer is not what it was, beyond rounding; nothing where all is equal."""
    if old is None:
        return [Moved(key, "answer", None, "new")]
    if new is None:
        return [Moved(key, "answer", "there", None)]
    found = []
    if old.sure != new.sure:
        found.append(Moved(key, "guarantee", old.sure, new.sure))
    for name in dict.fromkeys([*old.numbers, *new.numbers]):
        before, now = old.numbers.get(name), new.numbers.get(name)
        if before is None or now is None or not math.isclose(before, now, rel_tol=rtol, abs_tol=0.0):
            found.append(Moved(key, name, before, now, sampled=old.sampled))
    return found


def parts(answers):
    """The keys of the quick test, and those of the slow one."""
    quick, slow, total = [], [], 0.0
    for key, one in sorted(answers.items(), key=lambda item: item[1].seconds):
        total += one.seconds
        (quick if total <= QUICK_SECONDS else slow).append(key)
    return quick, slow


def loaded(path=FILE):
    """The answers in a file, by key."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return {
        (name, ask): Answer(
            {one: float(value) for one, value in entry["numbers"].items()}, entry["sure"], entry["seconds"]
        )
        for name, entries in document["values"].items()
        for ask, entry in entries.items()
    }


def saved(answers, path=FILE):
    """Write the answers, with the commit and the versions that they are of."""
    old = loaded(path) if path.exists() else {}
    values = {}
    for (name, ask), one in answers.items():
        numbers = {key: value if math.isfinite(value) else str(value) for key, value in one.numbers.items()}
        known = old.get((name, ask))
        seconds = float(f"{one.seconds:.2g}")
        if known is not None and 1.0 / _ABOUT <= (one.seconds + 0.1) / (known.seconds + 0.1) <= _ABOUT:
            seconds = known.seconds
        values.setdefault(name, {})[ask] = {"numbers": numbers, "sure": one.sure, "seconds": seconds}
    document = {"commit": _commit(), "versions": _versions(), "values": values}
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _commit():
    def git(*words):
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    # Of the library, not of the tests beside it.
    changed = git("status", "--porcelain", "--", "dpmech")
    return git("log", "-1", "--format=%H", "--", "dpmech") + (" and changes" if changed else "")


def _versions():
    own = {"python": platform.python_version(), "machine": platform.machine()}
    own["processor"] = " ".join(np.show_config(mode="dicts")["SIMD Extensions"]["found"])
    return own | {name: importlib.metadata.version(name) for name in _PACKAGES}
