"""Some 300 plans and what is asked of each: the table behind `values.json`.

A plan is plain data in words of its own, which say what runs and never which class or function it is. What
turns it into objects is `library`: after a change of names, that module changes and this one does not.

Words of strategies, each over n steps: (word, n, settings ...), see `library.strategy_of`. Words of
participations: (word, {setting: value}), see `library.participation_of`. What is asked is a tuple too:
(question, arguments ...), see `library.ANSWERS`.
"""

import dataclasses
import itertools

__all__ = ["EVERY", "REFUSED", "Plan"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What runs, and what is asked of it.

    Args:
        who: participation, in words; None for what has none.
        strategy: in words; None for what has none.
        asks: the questions.
        adjacency: "add_remove", "zero_out" or "replace_one".
        unit: "example" or "user".
        method: in words, None for the default one.
    """

    who: tuple | None
    strategy: tuple | None
    asks: tuple[tuple, ...]
    adjacency: str = "add_remove"
    unit: str = "example"
    method: tuple | None = None

    @property
    def name(self):
        """Says the whole plan; the key of its values in the file."""
        said = [_words(self.who), _words(self.strategy)]
        if self.adjacency != "add_remove":
            said.append(self.adjacency.replace("_", "-"))
        if self.unit != "example":
            said.append(f"of a {self.unit}")
        if self.method is not None:
            said.append("by " + _words(self.method))
        return ", ".join(one for one in said if one)


def _words(value):
    if value is None:
        return ""
    if isinstance(value, dict):
        return " ".join(f"{name}={_words(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, tuple | list):
        return " ".join(_words(one) for one in value if one not in (None, {}))
    return str(value)


def question(asked):
    """A question as the key of its answer."""
    return _words(asked)


def plans(who, strategies, *asks, methods=(None,), adjacencies=("add_remove",), unit="example"):
    """A plan for every strategy, method and adjacency."""
    return [
        Plan(who, strategy, asks, adjacency, unit, method)
        for strategy, method, adjacency in itertools.product(strategies, methods, adjacencies)
    ]


def merged(parts):
    """By name, with the questions of equal plans together."""
    found = {}
    for one in itertools.chain.from_iterable(parts):
        old = found.get(one.name)
        if old is not None:
            asks = tuple(dict.fromkeys([*old.asks, *one.asks]))
            found[one.name] = dataclasses.replace(one, asks=asks)
        else:
            found[one.name] = one
    return found


def sigmas(*pairs):
    return [("sigma", eps, delta) for eps, delta in pairs]


# ---- words

EVERY_STEP, SINGLE = ("every-step", {}), ("single", {})
PRV, RDP, PLD, EXACT = ("prv",), ("rdp",), ("pld",), ("exact",)
CERTIFIED, IMPORTANCE, PROGRAM = ("certified",), ("importance",), ("deterministic",)
BOTH, ALL = ("add_remove", "zero_out"), ("add_remove", "zero_out", "replace_one")
COMMON = (2.0, 1e-5)
EXTREMES = [*itertools.product((0.01, 0.1, 1.0, 8.0, 100.0), (1e-12, 1e-5, 0.1))]
CORNERS = [*itertools.product((0.01, 100.0), (1e-12, 0.1))]
README = ("lambda", 3900, 0.9)


def min_sep(b, k=None, users=None):
    return "min-sep", {"min_sep": b, "most": k, "users": users}


def epochs(k):
    return "epochs", {"epochs": k}


def poisson(q, users=None, batch=None, size=None):
    return "poisson", {"q": q, "users": users, "batch": batch, "size": size}


def fixed_size(size, batch):
    return "fixed-size", {"size": size, "batch": batch}


def rests(b, p):
    return "b-min-sep", {"min_sep": b, "q": p}


def cyclic(q, cycle, users=None):
    return "cyclic", {"q": q, "cycle": cycle, "users": users}


def bins(b, users=None):
    return "bins", {"bins": b, "users": users}


def fresh(b):
    return "fresh bins", {"bins": b}


def allocated(k, cycle=None):
    return "allocated", {"participations": k, "cycle": cycle}


# ---- without sampling

SMALL = [
    ("identity", 24),
    ("falling", 24),
    ("lambda", 24, 0.0),
    ("lambda", 24, 0.5),
    ("lambda", 24, 0.99),
    ("square-root", 24),
    ("square-root", 24, 4),
    ("inverse-square-root", 24, 4),
    ("inverse-square-root", 24, 24),
    ("banded", 24, (1.0, 0.6, 0.3)),
    ("banded", 24, (1.0, -0.3, 0.7, 0.1)),
    ("banded-inverse", 24, (1.0, -0.9, 0.1)),
    ("blt", 24, (0.95, 0.5), (0.2, 0.3)),
    ("blt", 24, (0.9, 0.3), (0.4, -0.2)),
    ("wavy", 24),
    ("hilbert", 24),
    ("normalized", ("lambda", 24, 0.8)),
    ("normalized", ("square-root", 24)),
    ("normalized", ("banded", 24, (1.0, -0.3, 0.7, 0.1))),
    ("normalized", ("wavy", 24)),
]
LARGE = [
    (README, min_sep(390, 10)),
    (("lambda", 100_000, 0.99), min_sep(1000, 100)),
    (("square-root", 4000, 64), min_sep(200)),
    (("inverse-square-root", 3900, 64), min_sep(390, 10)),
    (("normalized", ("lambda", 3900, 0.95)), min_sep(390, 10)),
    (("blt", 2000, (0.99527, 0.87344, 0.42784), (0.1293, 0.2059, 0.1672)), min_sep(200)),
    (("banded-inverse", 2000, (1.0, -0.9, 0.1)), epochs(10)),
    (("square-root", 2000), epochs(10)),
    (("wavy", 300), min_sep(30)),
    (("identity", 100_000), EVERY_STEP),
    (("identity", 100_000), min_sep(1000)),
]
UNSAMPLED = [
    *(
        plan
        for who in (EVERY_STEP, SINGLE, min_sep(6, 3), epochs(4))
        for plan in plans(who, SMALL, ("sensitivity",))
    ),
    *plans(min_sep(5), SMALL, ("sensitivity",), ("errors",), ("matrix",)),
    *(Plan(who, strategy, (("sensitivity",), ("errors",))) for strategy, who in LARGE),
    Plan(min_sep(390, 10), README, (*sigmas((8.0, 1e-5), (1.0, 1e-5)), ("certified", 8.0, 1e-5))),
    *plans(SINGLE, [("identity", 1)], *sigmas(*EXTREMES)),
    *plans(
        min_sep(4), [("lambda", 12, 0.8), ("normalized", ("lambda", 12, 0.8))],
        *sigmas(COMMON, *CORNERS), ("epsilon", 3.0, 1e-6), ("delta", 3.0, 2.0), ("batches", 60),
        adjacencies=ALL,
    ),
    *plans(
        min_sep(4), [("lambda", 12, 0.8)], *sigmas(COMMON), ("epsilon", 3.0, 1e-6), ("renyi", 3.0),
        methods=(EXACT, RDP),
    ),
    *(
        plan
        for who in (SINGLE, epochs(3))
        for plan in plans(who, [("lambda", 12, 0.8)], *sigmas(COMMON), adjacencies=ALL)
    ),
    *(
        plan
        for who in (EVERY_STEP, SINGLE, epochs(3), min_sep(4, 3, users=3))
        for plan in plans(who, [("lambda", 12, 0.8)], *sigmas(COMMON), ("epsilon", 3.0, 1e-6),
            methods=(EXACT, RDP))
    ),
    *plans(
        min_sep(4, 3, users=3), [("lambda", 12, 0.8), ("wavy", 12)],
        ("sensitivity",), *sigmas(COMMON), ("executed", 2.0, 1e-5, 5),
        adjacencies=ALL,
    ),
    *plans(
        EVERY_STEP, [("falling", 12), ("square-root", 12, 3)],
        *sigmas(COMMON, (0.1, 1e-8)), ("executed", 2.0, 1e-5, 7), ("batches", 60), adjacencies=ALL,
    ),
    *plans(epochs(3), [("banded-inverse", 12, (1.0, -0.9, 0.1)), ("wavy", 12)], *sigmas(COMMON),
        ("batches", 60)),
    *plans(
        epochs(3), [("lambda", 12, 0.8)],
        ("profile", 4.0), ("risk", 4.0), ("composed", 4.0, 7), ("selected", 4.0, 10.0, 0.0),
        ("executed", 2.0, 1e-5, 5), ("given", 4.0, 1e-5), adjacencies=("add_remove", "replace_one"),
    ),
    *plans(
        EVERY_STEP, [("identity", 10)],
        ("attack", 0.01, 0.05), ("advantage", 0.1), ("gaussian", 0.5), ("profile", 5.0), ("risk", 5.0),
        ("renyi", 5.0),
    ),
    *plans(min_sep(390, 10), [README], ("attack", 0.01, 0.05), ("advantage", 0.2), unit="user"),
    *plans(SINGLE, [("lambda", 120, 0.9)], ("sigma", 8.0, 1e-5), ("batches", 600)),
    *plans(min_sep(100, 5), [("lambda", 500, 0.9)], *sigmas((4.0, 1e-5), (1.0, 1e-7))),
    *plans(min_sep(10, 5), [("fitted lambda", 50), ("fitted banded", 50, 4), ("fitted inverse", 50, 3)],
        ("errors",)),
]  # fmt: skip

# ---- Poisson sampling, in its kinds

ONE_POISSON = [
    (1e-4, 100_000), (1e-4, 1), (0.00256, 3900), (0.01, 200), (0.01, 1000), (0.2, 12), (0.51, 50), (1.0, 12),
]  # fmt: skip
SAMPLED = [
    *(
        plan
        for q, n in ONE_POISSON
        for plan in plans(
            poisson(q), [("identity", n)], ("certified", 2.0, 1e-5), ("epsilon", 1.1, 1e-6),
                ("delta", 1.1, 0.5)
        )
    ),
    *plans(poisson(0.01), [("identity", 1000)], *sigmas(*EXTREMES)),
    *plans(poisson(0.00256), [("identity", 3900)], *sigmas((8.0, 1e-5), (1.0, 1e-5))),
    *plans(poisson(256 / 60_000), [("identity", 3510)], ("epsilon", 1.1, 1e-5), methods=(None, RDP)),
    *plans(
        poisson(0.2), [("identity", 12), ("scaled", 12)],
        *sigmas(COMMON), ("epsilon", 1.5, 1e-5), ("delta", 1.5, 1.0), ("renyi", 1.5),
        methods=(None, PLD, RDP), adjacencies=BOTH,
    ),
    *plans(poisson(0.2), [("identity", 12)], *sigmas(COMMON), ("epsilon", 1.5, 1e-5), methods=(PRV,)),
    *plans(poisson(0.2), [("identity", 12), ("falling", 12)], *sigmas(COMMON), ("epsilon", 1.5, 1e-5),
        adjacencies=("replace_one",)),
    *plans(poisson(0.2), [("falling", 12)], *sigmas(COMMON), ("delta", 1.5, 1.0), adjacencies=BOTH),
    *plans(cyclic(0.3, 4), [("identity", 12), ("square-root", 12, 2)], *sigmas(COMMON),
        adjacencies=("replace_one",)),
    *plans(poisson(1.0), [("identity", 12)], *sigmas(COMMON), methods=(EXACT, RDP, PLD)),
    *plans(
        poisson(0.01), [("identity", 1000)],
        ("profile", 1.0), ("executed", 2.0, 1e-6, 250), ("given", 1.1, 1e-5), ("batches", 600),
        adjacencies=BOTH,
    ),
    *plans(poisson(0.01), [("identity", 1000)], ("composed", 1.0, 2)),
    *plans(poisson(0.1), [("identity", 100)], ("advantage", 0.1)),
    *plans(poisson(0.01), [("identity", 100)], *sigmas(COMMON), unit="user"),
    # users with several examples
    *plans(
        poisson(0.2, users=3), [("identity", 12)],
        *sigmas(COMMON, (0.1, 1e-8)), ("epsilon", 4.0, 1e-5), ("delta", 4.0, 1.0), ("executed", 2.0, 1e-5, 6),
        ("batches", 60), methods=(None, PLD), adjacencies=BOTH,
    ),
    *plans(poisson(0.01, users=5), [("identity", 1000)], *sigmas((2.0, 1e-5))),
    *plans(poisson(1e-4, users=1000), [("identity", 10)], ("epsilon", 500.0, 1e-6)),
    # batches that are cut, batches of one size
    *plans(
        poisson(0.2, batch=8, size=30), [("identity", 1), ("identity", 12)],
        *sigmas(COMMON), ("epsilon", 1.5, 1e-5), ("delta", 1.5, 1.0), ("executed", 2.0, 1e-5, 1),
        ("batches", 30), methods=(None, PLD), adjacencies=("zero_out",),
    ),
    *plans(poisson(0.2, batch=8, size=30), [("identity", 1)], ("profile", 1.5), adjacencies=("zero_out",)),
    *plans(poisson(0.01, batch=150, size=10_000), [("identity", 1000)], *sigmas((4.0, 1e-5)),
        adjacencies=("zero_out",)),
    *plans(poisson(1.0, batch=5, size=30), [("identity", 12)], *sigmas(COMMON), adjacencies=("zero_out",)),
    *plans(
        fixed_size(30, 5), [("identity", 12)],
        *sigmas(COMMON, (0.1, 1e-8)), ("epsilon", 3.0, 1e-5), ("delta", 3.0, 1.0), ("executed", 2.0, 1e-5, 6),
        ("batches", 30), methods=(None, PLD), adjacencies=("replace_one",),
    ),
    *plans(fixed_size(30, 5), [("identity", 12)], ("profile", 3.0), adjacencies=("replace_one",)),
    *plans(
        fixed_size(30, 5), [("identity", 12)], *sigmas(COMMON), ("renyi", 3.0),
        methods=(RDP,), adjacencies=("replace_one",),
    ),
    *plans(fixed_size(10_000, 100), [("identity", 1000)], *sigmas((4.0, 1e-5)), methods=(None, RDP),
        adjacencies=("replace_one",)),
    *plans(fixed_size(30, 30), [("identity", 12)], *sigmas(COMMON), methods=(None, EXACT),
        adjacencies=("replace_one",)),
    # groups in turn
    *plans(
        cyclic(0.3, 4), [("square-root", 12, 2), ("square-root", 10, 2),
            ("banded", 12, (1.0, -0.3, 0.7, 0.1))],
        ("sensitivity",), *sigmas(COMMON), ("epsilon", 2.0, 1e-5), ("delta", 2.0, 1.0), ("batches", 60),
        adjacencies=BOTH,
    ),
    *plans(
        cyclic(0.3, 4), [("square-root", 12, 2)],
        ("profile", 2.0), ("executed", 2.0, 1e-5, 6), ("renyi", 2.0),
    ),
    *plans(cyclic(0.3, 4), [("square-root", 12, 2)], *sigmas(COMMON), methods=(PLD, PRV, RDP)),
    *plans(cyclic(0.04, 4), [("square-root", 1000, 4)], ("certified", 8.0, 1e-5)),
    *plans(cyclic(1.0, 4), [("square-root", 12, 2)], *sigmas(COMMON), methods=(None, EXACT)),
    *plans(
        cyclic(0.3, 4, users=2), [("square-root", 12, 2)],
        *sigmas(COMMON), ("epsilon", 3.0, 1e-5), ("executed", 2.0, 1e-5, 6), ("batches of users", 60),
        methods=(None, PLD), adjacencies=BOTH,
    ),
    *plans(cyclic(0.04, 4, users=5), [("square-root", 1000, 4)], *sigmas((8.0, 1e-5))),
]  # fmt: skip

# ---- random rests between participations

COOLDOWN = [
    *plans(
        rests(4, 0.1), [("square-root", 12, 4)],
        ("sensitivity",), ("errors",), ("sigma", 2.0, 1e-3), ("epsilon", 1.5, 1e-3), ("delta", 1.5, 1.0),
            ("batches", 60),
        adjacencies=BOTH,
    ),
    *plans(
        rests(4, 0.1), [("square-root", 12, 4), ("banded", 12, (1.0, 0.6, 0.3))],
        ("sigma", 2.0, 1e-3), ("delta", 1.5, 1.0), methods=(IMPORTANCE,), adjacencies=BOTH,
    ),
    *plans(rests(2, 0.3), [("square-root", 8, 2)], ("sigma", 1.0, 1e-3), ("profile", 2.0),
        methods=(("certified", 1e-6),)),
    *plans(rests(8, 0.1), [("square-root", 64, 8)], ("delta", 3.0, 1.0), methods=(IMPORTANCE,)),
    *plans(rests(1, 1.0), [("identity", 12)], *sigmas(COMMON), methods=(None, EXACT)),
]  # fmt: skip

# ---- bins

MAP = {
    "identity": lambda n: ("identity", n),
    "lambda 0.5": lambda n: ("lambda", n, 0.5),
    "lambda 0.9": lambda n: ("lambda", n, 0.9),
    "lambda 0.99": lambda n: ("lambda", n, 0.99),
    "4 bands": lambda n: ("square-root", n, 4),
    "64 bands": lambda n: ("square-root", n, 64),
    "64 inverse bands": lambda n: ("inverse-square-root", n, 64),
    "3 buffers": lambda n: ("blt", n, (0.99527, 0.87344, 0.42784), (0.1293, 0.2059, 0.1672)),
}
# Plans as in `docs/figures/bins_map.py` that take a few seconds at most, at all corners.
MAP_POINTS = [
    *itertools.product((20,), (0.1, 8.0), (1e-5,), sorted(MAP.keys() - {"lambda 0.5", "64 bands"})),
    (20, 8.0, 1e-5, "lambda 0.5"),
    (20, 8.0, 1e-5, "64 bands"),
    *itertools.product((20,), (1.0, 50.0), (1e-5,), ("identity",)),
    (20, 50.0, 1e-5, "lambda 0.9"),
    *itertools.product((20,), (2.0,), (1e-12,), ("lambda 0.5", "64 inverse bands")),
    *itertools.product((20, 390, 2000), (0.01, 1.0, 8.0), (1e-12,), ("identity",)),
    (390, 8.0, 1e-5, "lambda 0.9"),
    (2000, 8.0, 1e-9, "64 inverse bands"),
]
IN_BINS = [
    *(Plan(bins(b), MAP[kind](10 * b), (("sigma", eps, delta),)) for b, eps, delta, kind in MAP_POINTS),
    *plans(
        bins(4), [("lambda", 12, 0.5), ("wavy positive", 12), ("normalized", ("lambda", 12, 0.8)),
            ("square-root", 12)],
        ("sensitivity",), ("errors",), *sigmas(COMMON), ("epsilon", 3.0, 1e-5), ("delta", 3.0, 1.0),
    ),
    *plans(
        bins(4), [("lambda", 12, 0.5)], *sigmas(COMMON), ("epsilon", 3.0, 1e-5), ("delta", 3.0, 1.0),
            ("renyi", 3.0),
        methods=(None, CERTIFIED, IMPORTANCE, ("deterministic", 0.3), RDP), adjacencies=BOTH,
    ),
    *plans(
        bins(4), [("lambda", 12, 0.5)], *sigmas(COMMON), ("delta", 3.0, 1.0),
        methods=(("certified", 1e-6), ("certified", 1e-6, 3), ("importance", 0.05, 0.99)),
    ),
    *plans(bins(4), [("lambda", 12, 0.5)], *sigmas(*CORNERS), ("delta", 1e-3, 1.0)),
    *plans(bins(4), [("lambda", 12, 0.5)], *sigmas(*CORNERS), methods=(RDP,)),
    *plans(
        bins(4), [("lambda", 12, 0.5)],
        ("profile", 3.0), ("certified", 2.0, 1e-5), ("executed", 2.0, 1e-5, 7), ("batches", 60),
    ),
    *plans(bins(4), [("lambda", 12, 0.5)], ("profile", 3.0), methods=(RDP,)),
    *plans(bins(4), [("lambda", 12, 0.5)], ("given", 3.0, 1e-5), ("executed", 2.0, 1e-5, 7),
        methods=(("deterministic", 0.3), RDP)),
    *plans(bins(2), [("lambda", 4, 0.3)], *sigmas(COMMON), methods=(("deterministic", 0.02),)),
    *plans(bins(8), [("lambda", 24, 0.5)], *sigmas(COMMON), methods=(None, RDP, ("deterministic", 0.3))),
    *plans(
        bins(4), [("identity", 12)],
        *sigmas(COMMON, (0.1, 1e-12)), ("epsilon", 2.0, 1e-5), ("delta", 2.0, 1.0),
        methods=(None, EXACT, CERTIFIED, ("deterministic", 0.3), RDP, IMPORTANCE),
    ),
    *plans(
        bins(4), [("identity", 12)], *sigmas(COMMON), ("delta", 2.0, 1.0),
        methods=(None, EXACT, CERTIFIED, ("deterministic", 0.3), RDP, IMPORTANCE), adjacencies=("zero_out",),
    ),
    *plans(bins(4), [("identity", 12)], ("profile", 2.0)),
    *plans(bins(4), [("falling", 12)], *sigmas(COMMON), methods=(None, EXACT)),
    *plans(bins(4), [("identity", 12)], ("risk", 2.0), ("attack", 0.01, 0.05), ("advantage", 0.1),
        ("composed", 2.0, 3)),
    *plans(bins(100), [("identity", 1000)], *sigmas(COMMON), ("batches", 1000)),
    *plans(bins(10), [("lambda", 40, 0.5)], ("sigma", 4.0, 1e-5), methods=(None, RDP)),
    *plans(bins(1), [("lambda", 12, 0.5)], *sigmas(COMMON), methods=(None, RDP)),
    *plans(bins(4), [("lambda", 11, 0.5), ("identity", 11)], ("sigma", 4.0, 1e-5), methods=(None, RDP)),
    *plans(bins(4), [("fitted in bins", 12, 4)], ("errors",)),
    # users with several examples
    *plans(
        bins(4, users=2), [("lambda", 12, 0.5)], ("sigma", 2.0, 1e-3), ("delta", 5.0, 1.0),
        methods=(None, CERTIFIED, IMPORTANCE, RDP), adjacencies=BOTH,
    ),
    *plans(bins(4, users=2), [("lambda", 12, 0.5)], ("sensitivity",), ("batches", 60)),
    *plans(bins(10, users=2), [("lambda", 40, 0.5)], ("sigma", 4.0, 1e-5), methods=(RDP,)),
    *plans(bins(1, users=3), [("lambda", 12, 0.5)], *sigmas(COMMON)),
    # bins drawn anew every epoch
    *plans(
        fresh(2), [("identity", 4)], ("epsilon", 3.0, 1e-4), ("delta", 3.0, 0.5), ("batches", 60),
        adjacencies=BOTH,
    ),
    *plans(fresh(2), [("identity", 4)], ("profile", 3.0)),
    *plans(fresh(2), [("identity", 4)], ("delta", 3.0, 0.5), methods=(EXACT,)),
    *plans(fresh(3), [("steps", 6, 3)], ("delta", 3.0, 0.5)),
    *plans(fresh(1), [("identity", 4)], *sigmas(COMMON), methods=(None, RDP)),
    # exactly k of the steps
    *plans(
        allocated(2), [("identity", 5)], ("epsilon", 3.0, 1e-4), ("delta", 3.0, 0.5), ("batches", 60),
        adjacencies=BOTH,
    ),
    *plans(allocated(2), [("identity", 5)], ("delta", 3.0, 0.5), methods=(PLD, PROGRAM)),
    *plans(
        allocated(2), [("identity", 5)], ("sigma", 2.0, 1e-3), ("delta", 1.0, 0.5),
        methods=(CERTIFIED, IMPORTANCE),
    ),
    *plans(allocated(2), [("identity", 5)], ("profile", 3.0), ("sensitivity",)),
    *plans(allocated(4), [("identity", 4)], *sigmas(COMMON)),
    # exactly k of the steps of a group
    *plans(
        allocated(2, 2), [("square-root", 8, 2)],
        ("epsilon", 3.0, 1e-4), ("delta", 3.0, 0.5), ("batches", 60), ("sensitivity",),
        adjacencies=BOTH,
    ),
    *plans(allocated(2, 2), [("banded", 8, (1.0, -0.5))], ("delta", 3.0, 0.5), methods=(CERTIFIED,)),
    *plans(allocated(4, 2), [("square-root", 8, 2)], *sigmas(COMMON)),
]  # fmt: skip

# ---- what several releases add up to, and what has no participation

_ONCE = (SINGLE, ("identity", 1))
_SGD, _ROWS = (poisson(0.02), ("identity", 200)), (min_sep(4), ("lambda", 12, 0.8))
_BINS, _GROUPS = (bins(4), ("lambda", 12, 0.5)), (cyclic(0.3, 4), ("square-root", 12, 2))
_BINS_MOMENTS = (*_BINS, RDP)


def ledger(entries, *asks, **settings):
    """A ledger; its entries are (participation, strategy, eps, delta), or counts, or selections."""
    return Plan(("ledger", settings), ("of", *entries), asks)


TOTALS = [("total epsilon", 1e-5), ("total delta", 1.0)]
TOGETHER = [
    ledger([(*_SGD, 2.0, 1e-6), (*_SGD, 2.0, 1e-6), (*_ONCE, 0.5, 1e-6)], *TOTALS, ("total profile",)),
    ledger([(*_ROWS, 1.0, 1e-7), (*_GROUPS, 1.0, 1e-7)], *TOTALS, ("moments", 1e-5)),
    ledger([(*_BINS, 1.0, 1e-7), (*_SGD, 1.0, 1e-7)], ("total claims", 1e-5)),
    ledger([(*_BINS_MOMENTS, 1.0, 1e-7), (*_ROWS, 1.0, 1e-7)], ("total claims", 1e-5)),
    ledger([(*_ONCE, 1.0, 1e-7), ("counts", 20, 1, 12)], *TOTALS),
    ledger([("selection", 10.0, *_ONCE, 0.1, 1e-7)], *TOTALS),
    ledger([(*_ONCE, 0.5, 1e-6), (*_ROWS, 0.2, 1e-7)], ("left", 1e-6), *TOTALS, budget=(1.0, 1e-5)),
    ledger([(*_SGD, 0.5, 1e-6), (*_ROWS, 0.2, 1e-7)], ("left", 1e-6), *TOTALS, budget=(1.0, 1e-5),
        accounting="renyi"),
    ledger(
        [(*_SGD, 0.5, 1e-6), (*_BINS_MOMENTS, 0.2, 1e-7)], ("left", 1e-6), budget=(8.0, 1e-5),
            accounting="renyi 8",
    ),
    ledger([(*_BINS, 0.5, 1e-6), (*_SGD, 0.2, 1e-7)], ("left", 1e-6), budget=(1.0, 1e-5),
        accounting="claims"),
    ledger([(*_BINS, 0.05, 1e-7)] * 2, ("left", 1e-6), budget=(1.0, 1e-5), accounting="claims 1e-6"),
    ledger([(*_SGD, 2.0, 1e-6)], *TOTALS, adjacency="zero_out"),
    ledger([(*_ONCE, 2.0, 1e-6)], *TOTALS, adjacency="replace_one"),
    Plan(("counts", {"sigma": 20.0, "each": 1, "releases": 12}), None, (("counts", 1e-6, 0.5),)),
    Plan(("counts", {"sigma": 3.0, "each": 2, "releases": 1}), None, (("counts", 1e-12, 2.0),)),
    Plan(("counts", {"sigma": 100.0, "each": 1, "releases": 1000}), None, (("counts", 0.1, 0.1),)),
    Plan(("join", {"sigmas": (1.0, 1.0, 3.0)}), None, (("joined",),)),
    Plan(("blocks", {"norms": (0.1, 0.5, 2.0), "sigma": 2.3395}), None, (("blocks",),)),
    Plan(("adaptive clip", {"sigma": 1.3, "share": 0.01}), None, (("clip",),)),
    Plan(("adaptive clip", {"sigma": 0.5, "share": 0.5}), None, (("clip",),)),
    Plan(("batch", {"sigmas": (1.0, 1.0)}), ("of", *_SGD), (("batch", 1e-6, 0.5),)),
    Plan(("batch", {"sigmas": (5.0, 4.0)}), ("of", *_ROWS), (("batch", 1e-6, 0.5),)),
    Plan(("history", {"steps": ((1.1, 256 / 60_000, 3510), (0.9, 0.01, 100))}), None,
        (("history", 1e-5, 1.0),)),
    *(
        Plan(("sizes", {"size": 1000, "batch": 50, "epochs": 6}), ("as", sampling, settings), (("planned",),))
        for sampling, settings in (
            ("every-step", {}), ("single", {}), ("min-sep", {}), ("min-sep", {"min_sep": 10}), ("epochs", {}),
            ("poisson", {}), ("poisson", {"users": 3}), ("poisson", {"batch": 90}), ("fixed-size", {}),
            ("b-min-sep", {"separation": 4}), ("cyclic", {"cycle": 4}), ("cyclic", {"cycle": 4, "users": 3}),
            ("bins", {}), ("bins", {"users": 2}), ("fresh bins", {}), ("min-sep", {"users": 2}),
            ("allocated", {}), ("allocated", {"cycle": 4}),
        )
    ),
]  # fmt: skip

# ---- what is refused: each asks for a sigma or the like, and gets an error of a class that the file keeps

_ID, _LAM, _SIGNED = ("identity", 12), ("lambda", 12, 0.5), ("banded", 12, (1.0, -0.5))
_SIGMA = ("sigma", *COMMON)


def _refused(who, strategy, ask=_SIGMA, **settings):
    return Plan(who, strategy, (ask,), **settings)


REFUSING = [
    # no theorem for the adjacency
    *(
        _refused(who, _ID, adjacency="replace_one")
        for who in (poisson(0.2, users=2), rests(4, 0.1), bins(4),
            bins(4, users=2), fresh(4), allocated(2))
    ),
    _refused(poisson(0.2, batch=8, size=30), _ID),
    _refused(poisson(0.2, batch=8, size=30), _ID, adjacency="replace_one"),
    _refused(fixed_size(30, 5), _ID),
    _refused(fixed_size(30, 5), _ID, adjacency="zero_out"),
    # nor for correlated noise
    _refused(poisson(0.2), _LAM),
    _refused(poisson(0.2, users=2), ("falling", 12)),
    _refused(poisson(0.2, users=2), _LAM),
    _refused(poisson(0.2, batch=8, size=30), _LAM, adjacency="zero_out"),
    _refused(fixed_size(30, 5), _LAM, adjacency="replace_one"),
    _refused(cyclic(0.3, 2), ("square-root", 12, 4)),
    _refused(cyclic(0.3, 2, users=2), ("square-root", 12, 4)),
    _refused(rests(2, 0.1), ("square-root", 12, 4)),
    _refused(rests(4, 0.1), _SIGNED),
    _refused(bins(4), _SIGNED),
    _refused(bins(4, users=2), _SIGNED),
    _refused(bins(20, users=4), ("lambda", 40, 0.5)),
    _refused(fresh(4), _LAM),
    _refused(fresh(4), ("falling", 12)),
    _refused(allocated(2), _LAM),
    _refused(allocated(2), ("falling", 12)),
    # nor by the method
    *(_refused(min_sep(4), _LAM, method=how) for how in (PLD, PRV, CERTIFIED, IMPORTANCE, PROGRAM)),
    *(_refused(poisson(0.2), _ID, method=how) for how in (EXACT, CERTIFIED, IMPORTANCE, PROGRAM)),
    *(_refused(poisson(0.2, users=2), _ID, method=how) for how in (PRV, RDP, EXACT)),
    _refused(poisson(0.2, batch=8, size=30), _ID, method=RDP, adjacency="zero_out"),
    _refused(fixed_size(30, 5), _ID, method=PRV, adjacency="replace_one"),
    _refused(cyclic(0.3, 4), ("square-root", 12, 2), method=EXACT),
    *(_refused(rests(4, 0.1), ("square-root", 12, 4), method=how) for how in (PLD, RDP, EXACT, PROGRAM)),
    *(_refused(bins(4), _LAM, method=how) for how in (PLD, PRV, EXACT)),
    *(_refused(bins(4, users=2), _LAM, method=how) for how in (PLD, PROGRAM, EXACT)),
    *(_refused(fresh(4), _ID, method=how) for how in (PLD, RDP, CERTIFIED)),
    *(_refused(allocated(2), _ID, method=how) for how in (PRV, RDP, EXACT)),
    # sizes that do not fit, numbers out of range, budgets out of reach
    _refused(epochs(5), _LAM),
    _refused(bins(13), _LAM),
    _refused(allocated(13), _ID),
    _refused(allocated(2, 5), _ID),
    _refused(allocated(4, 4), _ID),
    _refused(allocated(2, 2), _LAM),
    _refused(min_sep(13), _LAM),
    _refused(poisson(1.5), _ID),
    _refused(poisson(0.2, users=2, batch=8, size=30), _ID),
    _refused(poisson(0.2, batch=8), _ID),
    _refused(fixed_size(30, 31), _ID, adjacency="replace_one"),
    _refused(min_sep(4), _LAM, ("sigma", 0.0, 1e-5)),
    _refused(min_sep(4), _LAM, ("sigma", 2.0, 1.0)),
    _refused(min_sep(4), _LAM, ("epsilon", 0.0, 1e-5)),
    _refused(bins(4), _LAM, ("given", 3.0, 1e-5)),
    _refused(poisson(0.2), _ID, ("error without a sigma",)),
    _refused(rests(4, 0.1), ("square-root", 12, 4), ("attack", 0.01, 0.05)),
    ledger([(*_SGD, 2.0, 1e-6)], ("total epsilon", 1e-5), budget=(1.0, 1e-5)),
    ledger([(*_BINS, 0.5, 1e-6)], ("total epsilon", 1e-5), budget=(1.0, 1e-5), accounting="gdp"),
    ledger([(*_ONCE, 0.5, 1e-6), (*_ONCE, 0.9, 1e-5)], ("total epsilon", 1e-5), budget=(1.0, 1e-5),
        accounting="gdp"),
]  # fmt: skip

EVERY = merged([UNSAMPLED, SAMPLED, COOLDOWN, IN_BINS, TOGETHER])
REFUSED = merged([REFUSING])
