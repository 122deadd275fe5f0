"""`optimize`: the best strategy of a family for a plan, its candidates, and the Fit that it returns."""

import concurrent.futures
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy

from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.certificates import with_checksum
from dpmech.engines import Method
from dpmech.exceptions import InvalidParameterError, NumericalError, UnsupportedCombinationError
from dpmech.files import parse_json, read_bytes, write_bytes
from dpmech.fitting.amplified import AmplifiedSearch, Sized, error_at
from dpmech.fitting.dense_program import LARGEST_DENSE, fit_dense
from dpmech.fitting.descent import Objective, Problem, certified_error, fit_family
from dpmech.fitting.families import BandedFamily, BufferedFamily, Family, InverseFamily
from dpmech.fitting.lower_bounds import gap_of, gap_words
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import (
    BLT,
    Adjacency,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    EveryStep,
    InverseSquareRoot,
    LambdaCGD,
    Mechanism,
    Participation,
    PrivacyBudget,
    Strategy,
    Workload,
    check_bands,
    check_participation,
    check_workload,
)
from dpmech.numerics import Bounds, running_on, up
from dpmech.schemes import effective_method, method_among, scheme_of
from dpmech.schemes.cyclic_poisson import CyclicPoisson
from dpmech.schemes.fixed_order import FixedEpochs, MinSep, SingleParticipation

_FORMAT = 1
# Bytes of a dense matrix of 3000 steps.
_LARGEST = 200_000_000


@dataclasses.dataclass(frozen=True)
class Fit:
    """The best strategy found, and the candidates it was selected from.

    Attributes:
        strategy: the best strategy.
        participation: its participation; the best one if several were given.
        objective: "rmse", "max_se" or "last".
        error: the certified error in units of the clip norm: at the calibrated sigma with a budget,
            and if sigma equals the sensitivity without one.
        identity_error: the error of independent noise, under the first participation; NaN if it was not
            compared.
        identity_calibration: its calibration; None without a budget, or if it was not compared.
        candidates: (description, error) of everything in the final comparison, including the best strategy.
        calibration: the calibration of the best strategy; None without a budget.
        gap: an upper bound on the relative distance of the error from that of the best matrix, by
            `dpmech.error_lower_bound`; None under sampling, for errors other than the RMSE of prefix sums,
            and for more than 256 steps.

    Example:
        >>> import dpmech as dm
        >>> fit = dm.optimize(dm.LambdaCGD, dm.MinSep(10, 5), n=50)
        >>> f"{fit.strategy.lam:.2f}", fit.error < fit.identity_error, fit.gap < 0.2
        ('0.76', True, True)
    """

    strategy: Strategy
    participation: Participation
    objective: str
    error: float
    identity_error: float
    candidates: tuple[tuple[str, float], ...]
    calibration: Calibration | None = None
    gap: float | None = None
    identity_calibration: Calibration | None = None

    def __str__(self) -> str:
        errors = up(self.error)
        if not math.isnan(self.identity_error):
            errors += f", of independent noise {up(self.identity_error)}"
        unit = "if sigma equals the sensitivity" if self.calibration is None else "at the calibrated sigma"
        fitted = [repr(self.strategy), repr(self.participation), f"{self.objective} {errors}: {unit}"]
        if self.gap is not None:
            fitted.append(gap_words(self.gap))
        return "\n".join(fitted if self.calibration is None else [*fitted, str(self.calibration)])


class FitCache:
    """Fitted coefficients on disk, one file per request.

    A file is written under a temporary name and then renamed, so that any number of processes may
    share the folder; results of several processes for one request are equivalent, and the last one is kept.
    Only coefficients are stored; errors are recomputed on reading.

    Args:
        folder: created if absent.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def key(self, request: dict[str, Any]) -> str:
        """SHA-256 (hex) of a request of plain data."""
        text = json.dumps({"format": _FORMAT} | request, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def load(self, key: str) -> tuple[Strategy, Participation] | None:
        """The entry of a key; None if there is none.

        Raises:
            InvalidParameterError: if the file is not a cache file, or belongs to another request.
        """
        path = self.folder / f"{key}.json"
        if not path.exists():
            return None
        try:
            data = parse_json(read_bytes("cache file", path, largest=_LARGEST))
            if data["format"] != _FORMAT or data["key"] != key:
                raise InvalidParameterError("cache file", str(path), f"one of format {_FORMAT} for its key")
            return Strategy.from_dict(data["strategy"]), Participation.from_dict(data["participation"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidParameterError("cache file", str(path), f"one written by dpmech ({error})") from None

    def store(self, key: str, strategy: Strategy, participation: Participation) -> None:
        """Write or replace an entry."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidParameterError(
                "cache", str(self.folder), f"a folder that may be written to ({error.strerror})"
            ) from error
        data = {
            "format": _FORMAT,
            "key": key,
            "strategy": strategy.to_dict(),
            "participation": participation.to_dict(),
        }
        write_bytes("cache file", self.folder / f"{key}.json", json.dumps(data).encode())


_DEFAULT_BANDS = 64
_DEFAULT_INVERSE_BANDS = 4
_SCAN = 25
_TIE = 1e-9

# Rough errors are accurate to one per cent: a start that is worse than this cannot win by sampling. Other
# methods rank strategies by their own looseness, so a start is always calibrated with them.
_CLEARLY_WORSE = 1.05
# Above this many bins no Gram matrix is formed.
_LARGEST_BINS = 6000

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A fitted strategy.

    Attributes:
        mechanism: the fitted C, and the participation that it was fitted under.
        error: certified without a budget; rough under Balls-in-Bins; NaN if only a calibration gives it.
        start: whether it was a starting point of the fit under Balls-in-Bins.
    """

    mechanism: Mechanism
    error: float
    start: bool = False


# A candidate, its actual error, and the calibration if there is a budget.
_Judged: TypeAlias = tuple[Mechanism, float, Calibration | None]


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """One call of `optimize` with checked arguments; see there for the fields."""

    family: type[Strategy]
    n: int
    bands: int | None
    buffers: int
    column_normalized: bool
    objective: Objective
    workload: Workload
    budget: PrivacyBudget | None
    adjacency: Adjacency
    calibration: dict[str, Any]
    report: Report
    compare: bool = True

    def plain(self, schemas: Sequence[Participation]) -> dict[str, Any]:
        """The inputs that determine the result, as plain data."""
        forms = {name: getattr(self.workload, name) for name in ("rates", "coefs", "matrix")}
        method = self.calibration["method"]
        return {
            "family": self.family.__name__,
            "n": self.n,
            "bands": self.bands,
            "buffers": self.buffers,
            "column_normalized": self.column_normalized,
            "objective": self.objective.value,
            "beta": self.workload.beta,
            "rates": None,
            **{name: entries.tolist() for name, entries in forms.items() if entries is not None},
            "budget": None if self.budget is None else [self.budget.eps, self.budget.delta],
            "adjacency": self.adjacency.value,
            "participation": [schema.to_dict() for schema in schemas],
            # Strategies are ranked by the looseness of the method.
            "method": None if method is None else type(method).__name__,
            **({} if self.compare else {"compare": False}),
            "settings": [] if method is None else [repr(getattr(method, name)) for name in _settings(method)],
        }

    def identity(self) -> Strategy:
        """The Identity, as a member of the family."""
        members: dict[type[Strategy], Callable[[], Strategy]] = {
            LambdaCGD: lambda: LambdaCGD(self.n, 0.0),
            BandedToeplitz: lambda: BandedToeplitz(self.n, np.ones(1)),
            BandedInverse: lambda: BandedInverse(self.n, np.ones(1)),
            InverseSquareRoot: lambda: InverseSquareRoot(self.n, 1),
            BLT: lambda: BLT(self.n, np.zeros(1), np.zeros(1)),
            Dense: lambda: Dense(np.eye(self.n)),
        }
        return members[self.family]()

    def candidates(self, schema: Participation) -> list[Candidate]:
        """Fitted strategies under one participation, without the Identity."""
        structure = scheme_of(schema).structure(schema)
        if structure.bins is not None:
            return self._amplified(schema, structure.bins)
        if structure.cycle is not None:
            # If only independent noise is covered, the result is the Identity, which is always a candidate.
            if self.family not in {BandedToeplitz, Dense} or structure.cycle == 1:
                return []
            if self.bands is not None and self.bands > structure.cycle:
                raise UnsupportedCombinationError(
                    f"{self.family.__name__} with bands={self.bands} under a cycle of {structure.cycle}",
                    supported="at most as many bands as the cycle",
                )
            return [self.candidate(self._fitted(SingleParticipation(), structure.cycle)[0], schema)]
        return [self.candidate(self._fitted(schema, None)[0], schema)]

    def candidate(
        self, strategy: Strategy, schema: Participation, error: float = math.nan, *, start: bool = False
    ) -> Candidate:
        """A candidate under the adjacency of this request."""
        return Candidate(Mechanism(strategy, schema, self.adjacency), error, start)

    def _problem(self, schema: Participation) -> Problem:
        return Problem(schema, self.n, self.workload, self.objective, self.column_normalized)

    def _fitted(self, schema: Participation, most: int | None) -> tuple[Strategy, float]:
        """The best member without amplification, with at most `most` bands."""
        problem = self._problem(schema)
        # Columns of one example's steps share no row; with a single step there is no restriction.
        apart = self.n if problem.pattern.max_participations == 1 else min(problem.pattern.min_sep, self.n)
        room = apart if most is None else min(most, self.n)
        if self.n == 1:
            return problem.finished(self.identity()), certified_error(problem, self.identity())
        if self.family is LambdaCGD:
            return _best_lambda(problem, self.report)
        if self.family is InverseSquareRoot:
            found = [(one, certified_error(problem, one)) for one in self._square_roots(problem)]
            return min(found, key=lambda one: one[1])
        if self.family is BandedInverse:
            bands = min(_DEFAULT_INVERSE_BANDS if self.bands is None else self.bands, self.n)
            if bands == 1:
                return problem.finished(self.identity()), certified_error(problem, self.identity())
            return fit_family(problem, InverseFamily(self.n, bands), None, self.report)
        if self.family is BLT:
            return fit_family(problem, BufferedFamily(self.n, self.buffers), None, self.report)
        bands = self._bands_of_c(problem, room, most)
        if bands == 1 and self.family is not Dense:
            return problem.finished(self.identity()), certified_error(problem, self.identity())
        start: tuple[Strategy, float] = (self.identity(), math.inf)
        if bands > 1:
            own = min(bands, room) if self.family is Dense else bands
            banded = BandedFamily(self.n, own, monotone=own > room)
            start = fit_family(problem, banded, own, self.report)
        if self.family is BandedToeplitz:
            return start
        return fit_dense(problem, bands, start[0], self.report)

    def _square_roots(self, problem: Problem) -> list[Strategy]:
        """Inverse square roots with fewer bands first: powers of two, and the most bands allowed."""
        most = min(_DEFAULT_BANDS if self.bands is None else self.bands, self.n)
        sizes = sorted({most, *(2**power for power in range(most.bit_length()))})
        return [problem.finished(InverseSquareRoot(self.n, bands)) for bands in sizes]

    def _bands_of_c(self, problem: Problem, room: int, most: int | None) -> int:
        if self.family is not Dense:
            return min(room, _DEFAULT_BANDS) if self.bands is None else self.bands
        evenly = most is None and problem.pattern.evenly_spaced
        bands = (self.n if evenly else room) if self.bands is None else self.bands
        if most is None and bands > room and not evenly:
            raise UnsupportedCombinationError(
                f"Dense with bands={bands} where participations may be {room} steps apart",
                supported=f"at most {room} bands: the squared column norms then add",
            )
        return bands if most is None else min(bands, room)

    def _amplified(self, schema: Participation, bins: int) -> list[Candidate]:
        """The unamplified optima, the best of their damping paths, and the best over all coefficients."""
        if self.budget is None:
            raise InvalidParameterError("eps", None, f"given, with delta, for {schema!r}")
        if bins > _LARGEST_BINS:
            raise UnsupportedCombinationError(
                f"a fit under {schema!r}", supported=f"at most {_LARGEST_BINS} bins"
            )
        search = AmplifiedSearch(bins, self.budget, self.workload, self.objective, self.report)
        epochs = MinSep(bins) if self.n % bins else FixedEpochs(self.n // bins)
        schemas = [epochs] if bins == self.n else [epochs, SingleParticipation()]
        most = bins if self.family is Dense else None
        if self.family is InverseSquareRoot:
            roots = map(search.sized, self._square_roots(self._problem(epochs)))
            return [self.candidate(one.strategy, schema, one.error) for one in roots if one is not None]
        if self.family is LambdaCGD:
            longest = self._problem(epochs).finished(LambdaCGD(self.n, 1.0 - 1.0 / (4.0 * self.n + 10.0)))
            starts, paths = [self._fitted(epochs, None)[0]], [longest]
        else:
            fitted = [self._fitted(one, most)[0] for one in schemas]
            if self.column_normalized and self.family is Dense:
                # Damping changes the norms, so they are restored at every point.
                fitted = [ColumnNormalized(one) for one in fitted]
            starts = paths = fitted[:1] if fitted[-1] == fitted[0] else fitted
        begun = [one for one in map(search.sized, starts) if one is not None]
        if len(begun) > 1 and begun[0].like(begun[1]):
            begun, paths = begun[:1], paths[:1]
        found: list[Sized] = []
        for path in paths:
            best = search.along(path, min((one.error for one in (*begun, *found)), default=math.inf))
            found += [] if best is None else [best]
        found += self._over(search, [*begun, *found])
        return [
            *(self.candidate(one.strategy, schema, one.error, start=True) for one in begun),
            *(self.candidate(one.strategy, schema, one.error) for one in found),
        ]

    def _over(self, search: AmplifiedSearch, found: list[Sized]) -> list[Sized]:
        """The best over all coefficients; ColumnNormalized ones are fitted without the scaling."""
        begin = min(found, key=lambda one: one.error, default=None)
        if begin is None or self.family is LambdaCGD:
            return []
        if isinstance(begin.strategy, ColumnNormalized):
            plain = search.sized(begin.strategy.strategy, begin.rough.sigma)
            moved = [] if plain is None else self._over(search, [plain])
            normalized = [search.sized(ColumnNormalized(one.strategy), one.rough.sigma) for one in moved]
            return [one for one in normalized if one is not None]
        family = self._nonnegative_family(begin.strategy)
        if family is not None:
            return [search.over(search.coefficient_move(family), begin)]
        if isinstance(begin.strategy, Dense):
            return [search.over(search.dense_move(begin.strategy.bands or self.n), begin)]
        return []

    def _nonnegative_family(self, strategy: Strategy) -> Family | None:
        """The non-negative members of the Toeplitz family of a strategy."""
        if isinstance(strategy, BandedToeplitz) and strategy.coefs.size > 1:
            return BandedFamily(self.n, strategy.coefs.size, monotone=True)
        if isinstance(strategy, BandedInverse) and strategy.coefs.size > 1:
            return InverseFamily(self.n, strategy.coefs.size, nonpositive=True)
        if isinstance(strategy, BLT):
            return BufferedFamily(self.n, strategy.decays.size)
        return None

    def finished(self, found: list[Candidate], schemas: Sequence[Participation]) -> Fit:
        """Compare the best candidate of every participation, and the Identity, by the actual error."""
        judged: list[_Judged] = []
        trials = len(found) + len(schemas)
        independent = {schema: self.candidate(self.identity(), schema).mechanism for schema in schemas}
        for schema in schemas:
            own = [one for one in found if one.mechanism.participation == schema]
            judged += self._best_of(own, trials)
            if self.compare or not own:
                judged.append(self._judged(independent[schema], trials))
        plain = self.identity()
        first = next((one for one in judged if one[0] == independent[schemas[0]]), None)
        # Correlation whose gain is within rounding does not justify its buffers.
        best = min(judged, key=lambda one: one[1] * (1.0 - (_TIE if one[0].strategy == plain else 0.0)))
        return Fit(
            strategy=best[0].strategy,
            participation=best[0].participation,
            objective=self.objective.value,
            error=best[1],
            identity_error=math.nan if first is None else first[1],
            candidates=tuple((f"{own.strategy!r}, {own.participation!r}", error) for own, error, _ in judged),
            calibration=best[2],
            gap=gap_of(best[0].strategy, best[0].participation, self.workload)
            if self.objective is Objective.RMSE
            else None,
            identity_calibration=None if first is None else first[2],
        )

    def _best_of(self, own: list[Candidate], trials: int) -> list[_Judged]:
        """The best candidate that an accountant can size, and starting points that may be better."""
        ranked = sorted(own, key=lambda one: one.error)
        # Sigmas by these methods are close to the rough sigmas, which rank the candidates.
        used = self.calibration["method"]
        rough = used is None or used.draws
        judged: list[_Judged] = []
        for one in ranked:
            close = not rough or one.error <= _CLEARLY_WORSE * ranked[0].error
            if judged and not (one.start and close and self.compare):
                continue
            try:
                judged.append(self._judged(one.mechanism, trials))
            except (NumericalError, UnsupportedCombinationError) as error:
                if one is ranked[-1] and not judged:
                    raise
                self.report(f"passed over: {error}")
        return judged

    def _judged(self, mechanism: Mechanism, trials: int) -> _Judged:
        """The actual error. Each of several calibrations gets a share of the failure probability."""
        strategy, schema = mechanism.strategy, mechanism.participation
        if self.budget is None:
            return mechanism, certified_error(self._problem(schema), strategy), None
        asked = effective_method(schema, self.calibration["method"])
        shared = asked.with_error_shared(trials)
        method = shared or method_among(schema, self.calibration["method"], trials)
        settings = self.calibration | {"method": method}
        cal = calibrate_sigma(mechanism, self.budget.eps, self.budget.delta, progress=self.report, **settings)
        if shared is not None:
            cal = with_checksum(
                dataclasses.replace(
                    cal,
                    achieved=_as_asked(cal.achieved, asked),
                    evidence=dataclasses.replace(cal.evidence, accountant=asked),
                )
            )
        return mechanism, error_at(strategy, cal.sigma, self.workload, self.objective), cal


def _as_asked(achieved: Bounds, asked: Method) -> Bounds:
    """Bounds of one of several samples, with the failure probability of all of them together."""
    facts = {name: getattr(asked, name, value) for name, value in achieved.by.facts.items()}
    return dataclasses.replace(
        achieved,
        guarantee=dataclasses.replace(achieved.guarantee, error=asked.error),
        by=dataclasses.replace(achieved.by, facts=facts),
    )


def _settings(method: Method) -> list[str]:
    return [field.name for field in dataclasses.fields(method) if field.name not in {"executor", "calls"}]


def _best_lambda(problem: Problem, report: Report) -> tuple[Strategy, float]:
    """LambdaCGD by a scan of log(1 / (1 - lam)) and Brent's method around its minimum."""

    def member(position: float) -> Strategy:
        return problem.finished(LambdaCGD(problem.n, min(-math.expm1(-position), 1.0 - 1e-12)))

    def error(position: float) -> float:
        return certified_error(problem, member(position))

    nodes = np.linspace(0.0, math.log(20.0 * problem.n + 10.0), _SCAN)
    values = [error(float(node)) for node in nodes]
    best = int(np.argmin(values))
    low, high = nodes[max(best - 1, 0)], nodes[min(best + 1, _SCAN - 1)]
    found = scipy.optimize.minimize_scalar(
        lambda x: math.log(error(float(x))), bounds=(low, high), method="bounded", options={"xatol": 1e-7}
    )
    position = min((float(found.x), float(nodes[best])), key=error)
    report(f"lam {-math.expm1(-position):.6g}: {up(error(position))}")
    return member(position), error(position)


_FAMILIES: tuple[type[Strategy], ...] = (
    LambdaCGD,
    BandedToeplitz,
    BandedInverse,
    InverseSquareRoot,
    BLT,
    Dense,
)
_DEFAULT_BUFFERS = 3


def optimize(
    family: type[Strategy],
    participation: Participation | Sequence[Participation] | None = None,
    *,
    n: int,
    bands: int | None = None,
    buffers: int | None = None,
    column_normalized: bool = False,
    objective: str = "rmse",
    eps: float | None = None,
    delta: float | None = None,
    workload: Workload | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: Method | None = None,
    rtol: float = 1e-3,
    rng: np.random.Generator | int | None = None,
    compare: bool = True,
    cache: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> Fit:
    """The strategy of a family with the smallest certified error.

    Without amplification, the error is `||B|| sens / sqrt(n)` (or its MaxSE or last-step form) with the upper
    end of the sensitivity that `dpmech.sensitivity` returns, minimised by L-BFGS with analytic gradients.
    Under Balls-in-Bins, it is the error at the calibrated sigma. A local search minimises it with rough
    values of sigma and their derivatives, first over damped versions of the unamplified optima, then over all
    coefficients >= 0. Under Poisson and CyclicPoisson, sigma depends only on the largest column norm, and at
    most one band, or `cycle` bands, are allowed. With a new allocation in every epoch, only independent noise
    is covered, and the result is the Identity.

    Args:
        family: LambdaCGD, BandedToeplitz, BandedInverse, InverseSquareRoot, BLT or Dense (n <= 4096).
        participation: which examples take part when; None is EveryStep. If several alternatives are given,
            such as those of `dpmech.fitting.cyclic_choices`, the best is returned. Balls-in-Bins: at most
            6000 bins.
        n: number of steps, >= 1.
        bands: bands of C (BandedToeplitz, Dense) or C^-1 (BandedInverse). The default is the largest number
            that the participation allows, up to 64 for BandedToeplitz and without a limit for Dense (n under
            FixedEpochs, where entries of X that are a multiple of n / epochs off the diagonal are 0); it is 4
            for BandedInverse. For InverseSquareRoot, it is the largest number of bands that is tried, in
            addition to all smaller powers of two, by default 64. Dense under Balls-in-Bins is fitted with at
            most as many bands as bins, as searches with more have found nothing better.
        buffers: number of exponentials of a BLT, from 1 to 8; by default 3.
        column_normalized: whether to scale the columns to norm 1, and fit the scaled strategy.
        objective: "rmse", "max_se" or "last".
        eps: the budget, with `delta`; required for random participations. The fit then contains a
            calibration, and its error is at that sigma.
        delta: see `eps`.
        workload: A; None is the prefix sum.
        adjacency: as for `calibrate_sigma`.
        method: as for `calibrate_sigma`, for the final calibrations. The best of several is returned, and all
            of them share one failure probability.
        rtol: as for `calibrate_sigma`.
        rng: as for `calibrate_sigma`, for the final calibrations; the search has a fixed seed.
        compare: whether to calibrate the Identity and the optimum without amplification as well, in case they
            are better. False calibrates only the best candidate, which takes half the time under
            Balls-in-Bins.
        cache: a folder; coefficients that were fitted earlier for the same arguments are read from it.
        progress: called with a line of text from time to time.
        executor: where samples are generated, as for `calibrate_sigma`.

    Returns:
        A Fit. Its error has the guarantee of the sensitivity or of the calibration. With `compare`, it is at
        most the error of the Identity and of the unamplified optimum (if the latter can be calibrated). The
        strategy is not always the best of its family: the problem is convex only for Dense with unit columns.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: if no theorem covers the combination.
        NumericalError: if a calibration fails.

    References:
        lambda_cgd Table 4 and section 4; noise_share eq. 26.

    Examples:
        >>> import dpmech as dm
        >>> fit = dm.optimize(dm.LambdaCGD, dm.MinSep(390, 10), n=3900)
        >>> round(fit.strategy.lam, 3), round(fit.error * 0.60022907, 2)
        (0.978, 12.69)
    """
    size, exponentials = check_family(family, n=n, bands=bands, buffers=buffers)
    steps = int(n)
    if (eps is None) != (delta is None):
        absent, other = ("delta", "eps") if delta is None else ("eps", "delta")
        raise InvalidParameterError(absent, None, f"given with {other}")
    aim, sums = Objective.check(objective), check_workload(workload, steps)
    if aim is Objective.LAST and sums is not None and sums.matrix is not None and not sums.matrix[-1].any():
        accepted = "a matrix whose last row is not 0, as objective='last' is about the error of that row"
        raise InvalidParameterError("workload", workload, accepted)
    request = Request(
        family=family,
        n=steps,
        bands=size,
        buffers=exponentials,
        column_normalized=bool(column_normalized),
        objective=aim,
        workload=sums,
        budget=None if eps is None or delta is None else PrivacyBudget(eps, delta),
        adjacency=Adjacency.check(adjacency),
        calibration={"method": method, "rtol": rtol, "rng": rng},
        report=progress if progress is not None else _silent,
        compare=bool(compare),
    )
    schemas = _alternatives(participation)
    for schema in schemas:
        schema.pattern(steps)
        refusal = scheme_of(schema).structure(schema).not_fitted
        if refusal is not None:
            raise refusal
        if schema.random and request.budget is None:
            raise InvalidParameterError("eps", eps, f"given, with delta, for {schema!r}")
    store = None if cache is None else FitCache(cache)
    key = "" if store is None else store.key(request.plain(schemas))
    stored = None if store is None else store.load(key)
    with running_on(executor):
        if stored is None:
            found = [one for schema in schemas for one in request.candidates(schema)]
        else:
            found = [request.candidate(*stored)]
        fit = request.finished(found, schemas)
    if store is not None and stored is None:
        store.store(key, fit.strategy, fit.participation)
    return fit


def check_family(
    family: type[Strategy], *, n: int, bands: int | None, buffers: int | None
) -> tuple[int | None, int]:
    """Check the sizes of a family as `optimize` does, before anything is fitted.

    Args:
        family: as for `optimize`.
        n: as for `optimize`.
        bands: as for `optimize`.
        buffers: as for `optimize`.

    Returns:
        bands, or None if the default depends on the participation; and buffers.

    Raises:
        InvalidParameterError: if an argument is invalid.
    """
    if not isinstance(family, type) or family not in _FAMILIES:
        raise InvalidParameterError("family", family, "one of " + ", ".join(k.__name__ for k in _FAMILIES))
    steps = check_integer("n", n, minimum=1)
    sizes = _checked_bands(family, bands, steps), _checked_buffers(family, buffers)
    if family is Dense and steps > LARGEST_DENSE:
        raise InvalidParameterError("n", steps, f"at most {LARGEST_DENSE} for Dense")
    return sizes


def cyclic_choices(sampling_prob: float, cycles: Sequence[int]) -> list[Participation]:
    """CyclicPoisson with the expected batch size of Poisson(sampling_prob), for every cycle; for `optimize`.

    Args:
        sampling_prob: q of Poisson sampling from all the data, in (0, 1].
        cycles: each at least 1 and at most 1 / q, because a group is 1 / cycle of the data.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> cyclic_choices(0.01, [1, 4])
        [CyclicPoisson(sampling_prob=0.01, cycle=1), CyclicPoisson(sampling_prob=0.04, cycle=4)]
    """
    rate = check_real("sampling_prob", sampling_prob, minimum=0.0, maximum=1.0, open_minimum=True)
    checked = [check_integer("cycle", cycle, minimum=1) for cycle in cycles]
    # A product may exceed 1 by rounding.
    if not checked or rate * max(checked) > 1.0 + 1e-12:
        raise InvalidParameterError("cycles", cycles, f"at least one, none above 1 / {rate:g}")
    return [CyclicPoisson(min(rate * cycle, 1.0), cycle) for cycle in checked]


def _alternatives(value: Participation | Sequence[Participation] | None) -> list[Participation]:
    if value is None:
        return [EveryStep()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        schemas = [check_participation(one) for one in value]
        if not schemas:
            raise InvalidParameterError("participation", value, "at least one participation")
        return list(dict.fromkeys(schemas))
    return [check_participation(value)]


def _checked_bands(family: type[Strategy], value: int | None, n: int) -> int | None:
    if value is None:
        return None
    if family in {LambdaCGD, BLT}:
        raise InvalidParameterError("bands", value, f"None for {family.__name__}")
    return check_bands(value, n)


def _checked_buffers(family: type[Strategy], value: int | None) -> int:
    if value is None:
        return _DEFAULT_BUFFERS
    if family is not BLT:
        raise InvalidParameterError("buffers", value, f"None for {family.__name__}")
    if value == 0:
        hint = "; without buffers the only strategy is Identity(n)"
        raise InvalidParameterError("buffers", value, "an integer in [1, 8]", hint)
    return check_integer("buffers", value, minimum=1, maximum=8)


def _silent(line: str) -> None:
    del line
