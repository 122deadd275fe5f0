"""Ledgers: the total of several releases about the same people (docs/checker.md, sections 7 and 8).

Every total stated in a file must be at least that of its releases.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from flint import arb

from .claims import Claim
from .confidence import DIRECTIONS
from .decide import UNDECIDED, Direction, Gaussian, Kind, Kinds, Sampled, Verdict, precise, verdict_on
from .documents import BadDocument, entries, floats, shown
from .losses import Curve, Law, Part, gaussian_delta, hull, lattices, rounded_down, rounded_up
from .pairs import counts_curve
from .records import Certified, Certifier, fresh
from .strategies import NotChecked

_CLOSE = 1e-3  # relative, in eps: where refinement stops
_LARGEST_EPS, _LARGEST_MEAN, _LARGEST_ORDER, _MOST = 1e5, 1.01e5, 10_000, 10**9
_POINTS = 400  # on the curve of a private selection
_RAISED, _EVERY = 1.05, 4  # factor on profile nodes in a total, and which nodes are used
_CELLS = 1024  # from -eps to eps of a Laplace loss
_LARGEST = {"approximate_dp": 1.0 - 1e-9, "discrete_laplace": 100_000}  # delta, and sensitivity
_PATIENCE, _MOST_NOISE = 10, 100_000  # factor on the time for all parts; counts take memory

_FIELDS: dict[str, dict[str, Any]] = {
    "laplace": {"scale": float, "sensitivity": float}, "gaussian": {"sigma": float, "sensitivity": float},
    "discrete_laplace": {"scale": float, "sensitivity": int}, "pure_dp": {"eps": float},
    "approximate_dp": {"eps": float, "delta": float}, "zcdp": {"rho": float},
    "randomized_response": {"truth_prob": float, "categories": int},
}  # fmt: skip

Runs = tuple[arb, Callable[[Curve], arb]]
_ONE_RUN: Runs = arb(1), lambda _: arb(1)
Counts = dict[tuple[Fraction, int], int]
Total = tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class _Release(Certified):
    """An entry with a certificate, decided with the delta that the ledger charges for it."""

    name: str  # name of the entry
    delta: float  # certified delta
    price: list[float]  # stated price
    runs: Runs | None  # of a private selection, the mean number of runs and the growth of ratios

    @property
    def kinds(self) -> Sequence[Kinds]:
        """Those of Poisson-sampled releases, whose noise and steps a total states, from above and below."""
        return self.shape.kinds if isinstance(self.shape, Sampled) else ()

    def proved(self) -> Claim:
        """Return the claim; raises NotChecked if it was not proved."""
        if self.claim is None or self.verdict.kind is not Kind.PROVED:
            raise NotChecked(f"the claim of {shown(self.name)} was not proved")
        return self.claim


@dataclasses.dataclass(frozen=True)
class _Other:
    """An entry without a certificate: a mechanism that is known by its noise, or a claim."""

    name: str
    price: list[float]
    count: int  # of releases
    kind: str
    nodes: list[tuple[float, arb]]  # (loss, delta), the last one its claim; empty if losses are unbounded
    rho: arb  # so much zCDP does it have; that of a Gaussian one is half of mu^2


Others = list[_Other]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def check_ledger(document: dict[str, Any], certifier: Certifier, total: Total) -> Verdict:
    """Return the verdict on a ledger; `total` is (eps, delta) of all, or None for the budget or some eps."""
    whole = entries(
        document, "the ledger", ("counts", "mechanisms"), guarantee=str, schema_version=int, ledger=Any,
        releases=list, total=Any, counts=list, mechanisms=list, checksum=str,
    )  # fmt: skip
    settings = entries(
        whole["ledger"], "the ledger", adjacency=str, allow_estimates=bool, mode=str, closed=bool,
        budget=dict | None, accounting=dict | None,
    )  # fmt: skip
    non_adaptive, counted = settings["mode"] == "non_adaptive", whole.get("counts", [])
    listed, version = whole.get("mechanisms", []), 3 if "mechanisms" in whole else 1 + ("counts" in whole)
    if whole["schema_version"] != version or max(map(len, (whole["releases"], counted, listed))) > 1000:
        raise BadDocument(f"it is not a ledger of schema version {version} with at most 1000 entries each")
    without = [settings[name] is None for name in ("budget", "accounting")]
    if settings["mode"] not in ("non_adaptive", "adaptive") or without != [non_adaptive] * 2:
        raise BadDocument(f"a ledger {shown(settings['mode'])} has the budget {shown(settings['budget'])}")
    kinds = ("gaussian", "sampled", "claims", "betas", "counts") if non_adaptive else ("limits", "spent")
    stated = entries(whole["total"], "the total", ("betas", "counts"), **dict.fromkeys(kinds, list))
    rows = [floats(row, "a claim of the total", 2) for row in stated.get("claims", ())]
    releases = list(_releases(whole["releases"], settings["mode"], rows, certifier))
    names = {release.name for release in releases}
    counts, units = _counts(counted, names)
    others = list(_others(listed, names, units, settings["adjacency"]))
    claims = [release.claim for release in releases if release.claim is not None]
    relations = {settings["adjacency"], *(claim.adjacency for claim in claims)}
    if len(units | {claim.unit for claim in claims}) > 1 or len(relations) > 1:
        raise BadDocument("releases of several units, or not all of its adjacency, stand in the ledger")
    if non_adaptive:
        found = [_decided("the sums in the file", _stated, stated, releases, counts)]
        found.append(_decided("all releases together", _together, releases, counts, others, certifier, total))
    elif counts or any(release.runs for release in releases):
        raise BadDocument("counts and private selections have no price under a budget")
    else:
        found = [_decided("all releases together", _filtered, settings, stated, [*releases, *others], total)]
    parts = [
        dataclasses.replace(one.verdict, claim=f"{shown(one.name)}: {one.verdict.claim}", unchecked=())
        for one in releases
    ] + found
    shown_kinds = {part.kind for part in parts}
    sizes = [_number(len(releases), "release"), _number(sum(counts.values()), "count")]
    sizes += [_number(len(others), "mechanism")] if others else []
    # A certificate that occurs in several entries was decided once.
    failure = sum({id(one.verdict): one.verdict.failure for one in releases}.values())
    return Verdict(
        next((kind for kind in (Kind.REFUTED, Kind.NOT_CHECKED) if kind in shown_kinds), Kind.PROVED),
        f"a ledger of {' and '.join(sizes)}, {settings['mode']}",
        f"{sum(part.kind is Kind.PROVED for part in parts)} of {len(parts)} parts proved:",
        failure + sum(part.failure for part in found),
        (
            "that the ledger is complete and older than its results, that batches named apart are apart, "
            "how far one person moves a count or a mechanism's result, claims of mechanisms, and that the "
            "number of runs of a selection is secret",
            *dict.fromkeys(entry for release in releases for entry in release.verdict.unchecked),
        ),
        tuple(parts),
    )


def _decided(words: str, decide: Callable[..., Verdict], *arguments: object) -> Verdict:
    try:
        with precise(1e-30):
            return decide(words, *arguments)
    except UNDECIDED as error:
        return Verdict(Kind.NOT_CHECKED, words, str(error) or type(error).__name__)


# ---- Reading.


def _releases(
    listed: list[Any], mode: str, rows: list[list[float]], certifier: Certifier
) -> Iterator[_Release]:
    """Yield every entry. In a non-adaptive total, each that enters as its claim has an (eps, delta)."""
    used, unknown, laws = set[tuple[str, str]](), False, dict[str, Runs]()
    for place, item in enumerate(listed, start=1):
        entry = entries(
            item, f"release {place}", ("runs",), number=int, name=str, mode=str, batch=str | None,
            blocks=dict, price=list, certificate=dict, runs=dict,
        )  # fmt: skip
        name, batch, document = entry["name"], entry["batch"], entry["certificate"]
        if (entry["number"], entry["mode"]) != (place, mode) or used & {("name", name), ("batch", batch)}:
            raise BadDocument(f"release {place} is {shown(name)} of {shown(batch)}: not in order, or twice")
        used |= {("name", name)} | ({("batch", batch)} if batch is not None else set())
        price = floats(entry["price"], "a price", 0 if mode == "non_adaptive" else None)
        runs = laws.setdefault(ascii(entry["runs"]), _runs(entry["runs"])) if "runs" in entry else None
        found = certifier.of(document, price[1] if len(price) == 2 else 1.0)
        stated = document["claim"]
        release = _Release(**vars(found), name=name, delta=stated["delta"], price=price, runs=runs)
        certain = found.shape is None or isinstance(found.shape, Gaussian)
        listed_apart = isinstance(found.shape, Gaussian) or release.kinds or runs or found.claim is None
        if mode == "non_adaptive" and not listed_apart:
            row = rows.pop(0) if rows else [-1.0, 0.0]
            if row[0] < stated["eps"] or not row[1] > 0.0:
                raise BadDocument(f"the total has less than the claim of {shown(name)}")
            release = dataclasses.replace(release, **vars(certifier.of(document, row[1])))
        # Mechanisms on one batch together have 1 / sigma^2 = sum of 1 / sigma_i^2.
        blocks = floats(list(entry["blocks"].values()), "blocks")
        joint = sum(1 / Fraction(sigma) ** 2 if sigma else math.inf for sigma in blocks)
        if (batch is None and not certain) or joint > 1 / Fraction(stated["sigma"]) ** 2:
            raise BadDocument(f"{shown(name)} names no batches, or its blocks have less than certified noise")
        unknown |= found.claim is None
        yield release
    if rows and not unknown:
        raise BadDocument(f"the total has {len(rows)} claims that no release made")


def _runs(law: dict[str, Any]) -> Runs:
    """The law of a number K of runs: E K, and the growth of ratios from the other direction's curve."""
    if law.get("law") == "poisson":
        mean = arb(entries(law, "a law", law=str, mean_runs=float)["mean_runs"])
        grows: Callable[[Curve], arb] = lambda curve: (mean * curve(arb(1))).exp()  # noqa: E731
    else:
        entries(law, "a law", law=str, shape=float, gamma=float)
        shape, gamma = arb(law["shape"]), arb(law["gamma"])
        if law["law"] != "truncated negative binomial" or not (shape > -1 and gamma > 0 and gamma < 1):
            raise BadDocument(f"a number of runs has the law {shown(law)}")
        gain = (1 - gamma) / gamma
        mean = gain / (-gamma.log() if shape == 0 else -(shape * gamma.log()).expm1() / shape)
        grows = lambda curve: _crossing(gain, curve) ** (1 + shape)  # noqa: E731
    if not (mean > 0 and mean <= arb(_LARGEST_MEAN)):
        raise BadDocument(f"the mean number of runs of {shown(law)} is not in (0, {_LARGEST_MEAN:g}]")
    return mean, grows


def _crossing(gain: arb, curve: Curve) -> arb:
    """A c near the least one with gain h(c) <= c - 1; since h <= 1, c = 1 + gain always qualifies."""
    low, high = arb(0), gain
    for _ in range(40):
        middle = arb(((low + high) / 2).mid())
        low, high = (low, middle) if gain * curve(1 + middle) <= middle else (middle, high)
    return 1 + high


def _counts(listed: list[Any], names: set[str]) -> tuple[Counts, set[str]]:
    """Number of integers by (sigma, sensitivity) of their noise, and the units that they refer to."""
    found, units = Counts(), set()
    for place, item in enumerate(listed, start=1):
        fields = {"sigma": str, "sensitivity": int, "releases": int, "unit": str}
        entry = entries(item, f"counts {place}", number=int, name=str, **fields)
        digits, shift, many = entry["sigma"].split("/"), entry["sensitivity"], entry["releases"]
        fraction = all(d.isascii() and d.isdigit() and len(d) <= 100 and int(d) for d in digits)
        if not fraction or len(digits) > 2 or not (1 <= shift <= _MOST and 1 <= many <= _MOST):
            raise BadDocument(f"counts {place} have sigma {shown(entry['sigma'])}, {shift} and {many}")
        if entry["number"] != place or entry["name"] in names or entry["unit"] not in ("example", "user"):
            raise BadDocument(f"counts {place} are {shown(entry['name'])}: not in order, or twice")
        names.add(entry["name"])
        units.add(entry["unit"])
        kind = Fraction(*map(int, digits)), shift
        found[kind] = found.get(kind, 0) + many
    return found, units


def _others(listed: list[Any], names: set[str], units: set[str], adjacency: str) -> Iterator[_Other]:
    """Yield the mechanisms without a certificate; adds their names and units to the others."""
    for place, item in enumerate(listed, start=1):
        what = f"mechanism {place}"
        entry = entries(item, what, number=int, name=str, count=int, price=list, mechanism=dict)
        law, count, kind = entry["mechanism"], entry["count"], str(entry["mechanism"].get("kind"))
        fields = _FIELDS.get(kind, {})
        entries(law, what, kind=str, unit=str, **fields)
        one, two = ([law[name] for name in fields] + [1, 1])[:2]
        fits = bool(fields) and 0.0 < one <= 1e9 and 0.0 < two <= _LARGEST.get(kind, 1e9)
        if kind == "randomized_response":
            fits = adjacency == "replace_one" and two >= 2 and 1 < Fraction(one) * two < two
        known = entry["name"] in names or law["unit"] not in ("example", "user")
        if entry["number"] != place or known or not fits or not 1 <= count <= _MOST:
            raise BadDocument(f"{what} is {shown(entry['name'])}, {count} times {shown(law)}")
        names.add(entry["name"])
        units.add(law["unit"])
        yield _Other(entry["name"], entry["price"], count, kind, *_bounded(kind, one, two))


def _bounded(kind: str, one: float, two: float) -> tuple[list[tuple[float, arb]], arb]:
    """(loss, delta) whose hull is the curve in both directions, for bounded losses, and a rho of zCDP."""
    if kind in ("gaussian", "zcdp"):
        return [], (arb(two) / arb(one)) ** 2 / 2 if kind == "gaussian" else arb(one)
    eps, nodes = arb(one), []
    if kind.endswith("laplace"):
        eps, cells = arb(two) / arb(one), int(two) if kind == "discrete_laplace" else _CELLS
        losses = [eps * k / cells for k in range(cells % 2, cells, 2 * -(-cells // _CELLS))]
        nodes = [(_above(loss), 1 - ((loss - eps) / 2).exp()) for loss in losses]
    elif kind == "randomized_response":
        other = (1 - arb(one)) / (two - 1)
        eps, nodes = (arb(one) / other).log(), [(0.0, arb(one) - other)]
    fails = arb(two if kind == "approximate_dp" else 0)
    end = one if kind.endswith("dp") else _above(eps)
    return [*nodes, (end, fails)], eps**2 / 2 if fails == 0 else arb(math.inf)


def _above(value: arb) -> float:
    return math.nextafter(float(value.upper()), math.inf)


# ---- A non-adaptive list, composed as a whole.


def _stated(words: str, total: dict[str, Any], releases: list[_Release], counts: Counts) -> Verdict:
    """Whether the stated total is at least that of the listed releases."""
    once = [release for release in releases if release.runs is None]
    floats(total.get("betas", []), "betas of the total")
    square = floats(total["gaussian"], "gaussian of the total", 2)[1]
    rows = [floats(row, "a sampled part of the total", 4) for row in total["sampled"]]
    stated = [floats(row, "counts of the total", 2) for row in total.get("counts", ())]
    if [row[1] for row in stated] != list(counts.values()):
        raise BadDocument("the total has another number of integers than the counts")
    smooth = [one.shape for one in once if isinstance(one.shape, Gaussian)]
    least = sum((shape.lower**2 for shape in smooth), arb(0))
    wrong = f"mu^2 is at least {rounded_down(least)}" if least > arb(square) else ""
    for name, (q, mu, steps) in (
        (one.name, kind) for one in once for kind in itertools.chain(*one.kinds[:1])
    ):
        fit = [row for row in rows if row[2] >= steps and not arb(row[0]) < q and not arb(row[1]) * mu > 1]
        if fit:
            min(fit, key=lambda row: (row[0], -row[1]))[2] -= steps
        else:
            wrong = f"no sampled part has the {steps} steps of {shown(name)}"
    for row, ((sigma, shift), many) in zip(stated, counts.items(), strict=True):
        if Fraction(row[0]) < (rho := many * shift**2 / (2 * sigma**2)):
            wrong = f"rho of counts is {float(rho):.6g}"
    if wrong:
        return Verdict(Kind.REFUTED, words, f"{wrong}: more than the file says")
    proved = all(one.shape is not None for one in once)
    proved = proved and sum((shape.upper**2 for shape in smooth), arb(0)) <= arb(square)
    return Verdict(Kind.PROVED if proved else Kind.NOT_CHECKED, words, "compared with those of the releases")


def _together(
    words: str, releases: list[_Release], counts: Counts, others: Others, certifier: Certifier, total: Total
) -> Verdict:
    """(eps, delta) of the whole list: the requested one, or an eps at the sum of all deltas."""
    if not (releases or counts or others):
        return Verdict(Kind.PROVED, words, "eps is at most 0: nothing was released")
    deltas = [one.delta * max(1.0, float(one.runs[0]) if one.runs else 1.0) for one in releases]
    deltas += [one.count * float(one.nodes[-1][1]) for one in others if one.nodes]
    alone = not (counts or others)
    spent = math.nextafter(math.fsum(deltas), 1.0) * (1.0 if alone else 1.1) if any(deltas) else 1e-5
    eps, delta = total or (None, min(0.5, spent))
    words = words if eps is None else f"{words}: eps {eps!r}, delta {delta!r}"
    most = arb(math.inf)
    apart = alone and all(one.runs is None and one.verdict.kind is Kind.PROVED for one in releases)
    if apart and arb(spent) <= arb(delta):
        most = sum((arb(one.claim.eps) for one in releases if one.claim), arb(0))  # basic composition
        if eps is not None and most <= arb(eps):
            return Verdict(Kind.PROVED, words, "the claims add up to no more")
    smooth = [one.shape for one in releases if isinstance(one.shape, Gaussian) and one.runs is None]
    if eps is not None and not (counts or others) and len(smooth) == len(releases):
        lower, upper = _root(one.lower for one in smooth), _root(one.upper for one in smooth)
        whole = Gaussian(lower, upper, "squares added")
        return verdict_on(words, whole, eps, delta, certifier.seconds, certifier.rng)
    directions, failure = _directions(releases, counts, delta, certifier)
    parts = tuple(_other_parts(others, delta))
    directions = {name: Direction(one.above + parts, one.below) for name, one in directions.items()}
    if eps is not None:
        found = verdict_on(words, Sampled(directions), eps, delta, certifier.seconds, certifier.rng)
        return dataclasses.replace(found, failure=failure)
    least = arb(max(_least_eps(one.above, delta, certifier.seconds) for one in directions.values())).min(most)
    if not least <= arb(_LARGEST_EPS):
        raise NotChecked(f"no eps up to {_LARGEST_EPS:g} was found at delta {delta!r}")
    return Verdict(Kind.PROVED, words, f"eps is at most {rounded_up(least)} at delta {delta!r}", failure)


def _directions(
    releases: list[_Release], counts: Counts, delta: float, certifier: Certifier
) -> tuple[dict[str, Direction], float]:
    """Both directions of the composition, and the failure probability of the samples for them: 7.1."""
    once = [release for release in releases if release.runs is None]
    smooth = [one.shape for one in once if isinstance(one.shape, Gaussian)]
    sampled = {id(one.shape): one.shape for one in once if isinstance(one.shape, Sampled)}
    # Equal certificates share one verdict and one set of samples.
    apart = [one for one in releases if one.runs or not isinstance(one.shape, Gaussian | Sampled)]
    often = collections.Counter((id(one.verdict), id(one.runs)) for one in apart)
    start, rest, found = time.process_time(), list[tuple[tuple[Part, Part], float, int]](), {}
    for same, one in {(id(one.verdict), id(one.runs)): one for one in apart}.items():
        if rest and time.process_time() - start > _PATIENCE * certifier.seconds:
            raise TimeoutError("the time is up")
        rest.append((*(_best_of if one.runs else _known)(one, delta, certifier), often[same]))
    if sum(sigma for sigma, _ in counts) > _MOST_NOISE:
        raise NotChecked(f"counts of noise {_MOST_NOISE} and more together")
    sums = [Part(counts_curve(*kind), many) for kind, many in counts.items()]
    for side, name in enumerate(DIRECTIONS):
        above, below = list[Part](), list[Part]()
        if smooth:
            above.append(Part(functools.partial(gaussian_delta, _root(one.upper for one in smooth)), 1))
            below.append(Part(functools.partial(gaussian_delta, _root(one.lower for one in smooth)), 1))
        for key, shape in sampled.items():
            many, own = sum(id(one.shape) == key for one in once), shape.names[name]
            above += [dataclasses.replace(part, times=part.times * many) for part in own.above]
            below += [dataclasses.replace(part, times=part.times * many) for part in own.below]
        above += sums
        above += [dataclasses.replace(parts[side], times=many) for parts, _, many in rest]
        found[name] = Direction(tuple(above), tuple(below))
    return found, sum(failure for _, failure, _ in rest)


def _other_parts(others: list[_Other], delta: float) -> Iterator[Part]:
    """Each bounded mechanism, all Gaussian ones together, and all zCDP claims together: section 7.4."""
    for one in others:
        if one.nodes:
            part = _hulls(one.nodes, one.nodes, one.nodes[-1][0])[0]
            yield dataclasses.replace(part, times=one.count)
    mu, rho = (
        sum((one.count * one.rho for one in others if one.kind == kind), arb(0))
        for kind in ("gaussian", "zcdp")
    )
    if mu > 0:
        yield Part(functools.partial(gaussian_delta, (2 * mu).sqrt()), 1)
    if rho > 0:
        size = float(rho)
        top = size + 2.0 * math.sqrt(size * math.log(1e4 / delta))
        nodes = [(0.0, (rho / 2).sqrt().min(arb(1)))]
        for loss in (top * k / _POINTS for k in range(1, _POINTS + 1)):
            best = max(loss - size, 0.1 * size) / (2.0 * size)
            orders = (1 + arb(best) * arb(2) ** (arb(k) / 4) for k in range(-8, 9))
            nodes.append((loss, functools.reduce(arb.min, (_renyi_delta(a, a * rho, loss) for a in orders))))
        yield _hulls(nodes, nodes, top)[0]


def _root(sizes: Iterable[arb]) -> arb:
    return sum((size**2 for size in sizes), arb(0)).sqrt()


def _known(release: _Release, delta: float, certifier: Certifier) -> tuple[tuple[Part, Part], float]:
    """Both directions from the proved claim and from nodes of the profile that are raised and proved."""
    claim = release.proved()
    points = {name: [(claim.eps, arb(claim.delta))] for name in DIRECTIONS}
    top, failure = max(claim.eps, 2.0**-10), 0.0
    raised = {
        name: [(at, min(1.0, upper * _RAISED)) for at, upper in nodes[::_EVERY] if upper > delta * 1e-5]
        for name, nodes in release.profile.items()
        if not fresh(claim)  # the nodes are those of one epoch
    }
    for name, (at, upper), answer in certifier.nodes(release, raised, 1e-12):
        failure += answer.failure
        if answer.verdict:
            points[name].append((at, arb(upper)))
            top = max(top, at)
    return _hulls(points["REMOVE"], points["ADD"], top), failure


def _hulls(remove: list[tuple[float, arb]], add: list[tuple[float, arb]], top: float) -> tuple[Part, Part]:
    return Part(hull(remove, add), 1, (-top, top)), Part(hull(add, remove), 1, (-top, top))


def _best_of(release: _Release, delta: float, certifier: Certifier) -> tuple[tuple[Part, Part], float]:
    """The best of K runs: H(a) <= E K h(a / b), h the curve of one run, on a grid of losses: section 7.3."""
    (mean, grows), one = release.runs or _ONE_RUN, dataclasses.replace(release, runs=None)
    small = delta / (100.0 * max(1.0, float(mean)))
    directions, failure = _directions([one], Counts(), small, certifier)
    laws = []
    for direction in directions.values():
        finer = list(itertools.islice(lattices(direction.above, small, certifier.seconds / 4.0), 3))
        if not finer:
            raise TimeoutError("the time is up")
        laws.append(finer[-1].law(direction.above, above=True))
    growth = [grows(law.delta) for law in reversed(laws)]
    curves = [_selected(law, mean, one) for law, one in zip(laws, growth, strict=True)]
    top = 2.0**-6
    while top < _LARGEST_EPS and any(curve(arb(top).exp()) > arb(delta * 1e-4) for curve in curves):
        top *= 2.0
    places = [top * k / _POINTS for k in range(_POINTS + 1)]
    remove, add = ([(loss, curve(arb(loss).exp())) for loss in places] for curve in curves)
    return _hulls(remove, add, top), failure


def _selected(law: Law, mean: arb, growth: arb) -> Curve:
    return lambda alpha: (mean * law.delta(alpha / growth)).min(arb(1))


def _least_eps(above: Sequence[Part], delta: float, seconds: float) -> float:
    """An eps near the least one for which the composition is shown to have delta; infinite if none is."""
    best = math.inf
    with contextlib.suppress(TimeoutError):
        for lattice in lattices(above, delta, seconds) if above else ():
            law, low, high = lattice.law(above, above=True), 0.0, 2.0**-10
            while high <= _LARGEST_EPS and not law.delta(arb(high).exp()) <= arb(delta):
                low, high = high, 2.0 * high
            for _ in range(20):
                middle = 0.5 * (low + high)
                low, high = (low, middle) if law.delta(arb(middle).exp()) <= arb(delta) else (middle, high)
            before, best = best, min(best, high if high <= _LARGEST_EPS else math.inf)
            if before - best <= _CLOSE * best:
                break
    return best if above else 0.0


# ---- Adaptive releases: a filter.


def _filtered(
    words: str, settings: dict[str, Any], stated: dict[str, Any], releases: list[_Release], total: Total
) -> Verdict:
    """Check that prices are at least the costs, costs within the limits, and limits within the budget."""
    budget = entries(settings["budget"], "the budget", eps=float, delta=float)
    eps, delta = total or (budget["eps"], budget["delta"])
    kind = settings["accounting"].get("type")
    fields: dict[str, Any] = {"RenyiAccounting": {"order": int}, "ClaimAccounting": {"slack": float}}
    own = {"GdpAccounting": {}, **fields}.get(str(kind))
    if own is None or not (0.0 <= eps <= _LARGEST_EPS and 0.0 < delta < 1.0):
        raise BadDocument(f"a budget of eps {eps!r}, delta {delta!r} in {shown(settings['accounting'])}")
    accounting = entries(settings["accounting"], "the accounting method", type=str, **own)
    order, squared = accounting.get("order", 2), accounting.get("slack", 0.0) > 0.0
    size = 2 if kind == "ClaimAccounting" else 1
    limits, spent = (floats(stated[name], name, size) for name in ("limits", "spent"))
    paid = zip(*(floats(one.price, "a price", size) for one in releases), strict=True)
    for limit, said, prices in zip(limits, spent, paid, strict=False):
        if not sum(map(Fraction, prices)) <= min(Fraction(limit), Fraction(said)):
            raise BadDocument(f"prices {shown(prices)} are more than the limit {limit!r}, or than {said!r}")
    words, allowed = f"{words}: eps {eps!r}, delta {delta!r}", arb(limits[0])
    if kind == "GdpAccounting":
        found = gaussian_delta(allowed.sqrt(), arb(eps).exp()) if limits[0] else arb(0)
    elif kind == "RenyiAccounting":
        if not 2 <= order <= _LARGEST_ORDER:
            raise BadDocument(f"the order is {order}, not in [2, {_LARGEST_ORDER}]")
        found = _renyi_delta(arb(order), allowed, eps)
    elif squared:
        orders = [1 + arb(2) ** (arb(step) / 32) for step in range(-128, 449)]
        found = min((_renyi_delta(one, one * allowed, eps) for one in orders), key=lambda x: float(x.mid()))
        found += arb(limits[1])
    else:
        found = arb(limits[1]) if limits[0] <= eps else arb(1)
    if kind == "GdpAccounting" and found > arb(delta):
        return Verdict(Kind.REFUTED, words, f"the limit allows delta {rounded_down(found)}")
    cost = arb(0)
    for one in releases:
        least, most = _cost(one, kind, order, squared=squared)
        if least > arb(one.price[0]):
            reason = f"{shown(one.name)} costs at least {rounded_down(least)}, not {one.price[0]!r}"
            return Verdict(Kind.REFUTED, words, reason)
        cost += most
    proved = found <= arb(delta) and cost <= allowed
    reason = f"{rounded_up(cost)} is spent, and the limit {limits[0]!r} stands for delta {rounded_up(found)}"
    return Verdict(Kind.PROVED if proved else Kind.NOT_CHECKED, words, reason)


def _renyi_delta(order: arb, divergence: arb, eps: float) -> arb:
    """Delta <= e^((a - 1) D) sup_r (r - e^eps) r^-a, with the supremum at r = e^eps a / (a - 1)."""
    less = order - 1
    return (less * (divergence - arb(eps)) - less.log() - order * (order / less).log()).exp()


def _cost(release: _Release | _Other, kind: str, order: int, *, squared: bool) -> tuple[arb, arb]:
    """Lower and upper bounds on the cost of a release in an accounting method."""
    if isinstance(release, _Other):
        top, fails = release.nodes[-1] if release.nodes else (math.inf, arb(0))
        most = arb(top) ** 2 / 2 if squared else arb(top)
        if kind != "ClaimAccounting":
            known = kind == "RenyiAccounting" or release.kind == "gaussian"
            most, fails = release.rho * order if known else arb(math.inf), arb(0)
        if not (most.is_finite() and fails * release.count <= arb(release.price[-1])):
            raise NotChecked(f"no theorem here gives {shown(release.name)} its price in {kind}")
        less = kind == "RenyiAccounting" and release.nodes  # the divergence of a bounded loss may be less
        return most * (0 if less else release.count * arb(1.0 - 1e-12)), most * release.count
    if kind == "ClaimAccounting":
        if release.proved().delta > release.price[1]:
            raise NotChecked(f"{shown(release.name)} is charged delta {release.price[1]!r} only")
        eps = arb(release.proved().eps)
        return (eps * eps / 2, eps * eps / 2) if squared else (eps, eps)
    if isinstance(release.shape, Gaussian):
        factor = arb(1) if kind == "GdpAccounting" else arb(order) / 2
        return factor * release.shape.lower**2, factor * release.shape.upper**2
    replaced = release.claim is not None and release.claim.adjacency == "replace_one"
    if kind == "GdpAccounting" or replaced or not release.kinds:
        raise NotChecked(f"no theorem here gives {shown(release.name)} a price in {kind}")
    own = ([times * _sampled_divergence(q, mu, order) for q, mu, times in one] for one in release.kinds)
    most, least = (sum(costs, arb(0)) for costs in own)
    return least, most


def _sampled_divergence(q: arb, mu: arb, order: int) -> arb:
    """Log E r^a over a - 1, r = 1 - q + q e^(mu x - mu^2 / 2), by expansion in powers of the second term."""
    total, gain, power = arb(0), (mu * mu).exp(), arb(1)
    term, odds = (1 - q) ** order, q / (1 - q)
    for k in range(order + 1):
        total += term
        term, power = term * odds * power * (order - k) / (k + 1), power * gain  # e^(mu^2 k (k - 1) / 2)
    return total.log() / (order - 1)
