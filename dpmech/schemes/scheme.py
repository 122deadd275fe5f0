"""Scheme: everything the library knows about one sampling scheme, in one object; and the registry of them."""

import abc
import dataclasses
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dpmech.drawing import Sampler
from dpmech.engines import Accountant, Canary, Exact, Method, Rdp
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.mechanism import (
    Mechanism,
    Participation,
    Pattern,
    Strategy,
    forget,
    kinds,
    register,
    register_later,
    scheme_with,
)
from dpmech.numerics import FloatArray


@dataclasses.dataclass(frozen=True)
class BatchRule:
    """What a tracker checks in every batch. The distribution of the batches cannot be checked from one run.

    Args:
        pattern: how often and how far apart one example takes part; None if every step is sampled anew.
        cycle: number of groups that take turns, each example being in one of them; None without groups.
        epoch: number of steps of an epoch if every example takes part exactly once in each epoch, in a new
            order; None otherwise.
        dataset_size: the number of examples that the claim is about; None if any number is allowed.
        largest: the maximum number of examples in a batch; None without a limit.
        exactly: the number of examples of every batch; None if it depends on chance or on the dataset.
    """

    pattern: Pattern | None
    cycle: int | None = None
    epoch: int | None = None
    dataset_size: int | None = None
    largest: int | None = None
    exactly: int | None = None


@dataclasses.dataclass(frozen=True)
class Structure:
    """How the releases that one unit may join depend on each other.

    Without bins and without a cycle, the sensitivity over the pattern determines the noise.

    Args:
        bins: the mixture of Gaussians over that many bins determines the noise; None otherwise.
        cycle: the releases that a unit may join are this many steps apart, and compose, if the strategy has
            at most this many bands; 1 if noise has to be independent. None if releases are not sampled
            separately.
        not_fitted: why no strategy is fitted, and what to do instead; None if one is fitted.
        judged: whether a strategy can be evaluated by a number that needs no samples.
    """

    bins: int | None = None
    cycle: int | None = None
    not_fitted: UnsupportedCombinationError | None = None
    judged: bool = True


def independent_noise_only(participation: object) -> UnsupportedCombinationError:
    """The error if a fit is requested for a scheme that requires independent noise of one size."""
    return UnsupportedCombinationError(
        f"nothing is fitted under {participation!r}, which takes independent noise of one size",
        supported="Identity there; other participations here",
    )


def as_of_one_example(participation: object, alike: str) -> UnsupportedCombinationError:
    """The error if a fit is requested for users whose optimal strategy is that for one example."""
    return UnsupportedCombinationError(
        f"nothing is fitted under {participation!r}",
        supported=f"a fit under {alike} with the same numbers: sigma is a multiple of that of one "
        "example, so that coefficients which are best there are best here",
    )


def not_built(participation: object) -> UnsupportedCombinationError:
    """The error if no fit is implemented."""
    return UnsupportedCombinationError(f"nothing is fitted under {participation!r}", supported=offered("fit"))


_GROUP = "dpmech.schemes"  # entry points; each names a Scheme object


P = TypeVar("P", bound=Participation)


class Scheme(abc.ABC, Generic[P]):
    """One sampling scheme: its participations, the accountant that covers them, and the sampler.

    The rest of the library calls these methods and never depends on a particular scheme. A scheme is added by
    a folder `dpmech/schemes/<name>` with a module `scheme` that binds `SCHEME`, or by an entry point of the
    group `dpmech.schemes`.

    Attributes:
        offers: optional features (`canary`, `event`, `fit`, `nodes`, `risk`), each with its name in errors.
        samplers: the kinds of participation, each with the callable that makes its sampler for `new_sampler`.
    """

    offers: ClassVar[Mapping[str, str]] = {}
    samplers: Mapping[type[Participation], Callable[..., Sampler]]

    @abc.abstractmethod
    def default(self, participation: P) -> Method:
        """The method that None selects."""

    def shared(self, participation: P, calls: int) -> Method | None:
        """The default method for one of several calls of which one will be selected; None if unchanged.

        Args:
            participation: the participation of the mechanism.
            calls: how many.
        """
        used = self.default(participation)
        shared = used.among(calls)
        return None if shared == used else shared

    def unsampled(self, participation: P) -> Method | None:
        """A method whose result is a bound and that uses no samples, if the default method uses samples."""
        del participation
        return None

    @abc.abstractmethod
    def accountant(
        self,
        participation: P,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """The accountant of a mechanism.

        Args:
            participation: the participation of the mechanism.
            mechanism: the mechanism.
            method: the accounting method; None for the default.
            rng: random numbers of sampled accountants; None for their default source.

        Raises:
            UnsupportedCombinationError: if no theorem covers the mechanism by this method.
        """

    def sampler(
        self,
        participation: P,
        dataset_size: int,
        n: int,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        declared_size: int | None = None,
        hides_size: bool = False,
        user_ids: Sequence[Hashable] | npt.NDArray[np.generic] | None = None,
        rng: object = None,
    ) -> Sampler:
        """The sampler that realises a participation over n steps; arguments as for `sampler_for`.

        Raises:
            InvalidParameterError: if an argument is invalid, or if this scheme does not accept it.
        """
        del declared_size, hides_size
        for name, value, neutral in (("batch_size", batch_size, None), ("drop_last", drop_last, False)):
            if value is not neutral:
                raise InvalidParameterError(
                    name, value, f"{neutral}: {participation!r} says by itself how many examples join"
                )
        whose = {"user_ids": user_ids} if participation.users_together else {}
        return self.new_sampler(participation, dataset_size, n, **whose, rng=rng)

    def new_sampler(self, participation: P, dataset_size: int, n: int, **options: Any) -> Sampler:  # noqa: ANN401 - `rng` is anything
        """Call the entry of `samplers` for a participation, after `sampler` has checked the arguments.

        Args:
            participation: which examples take part when. Fields without a default are passed in order after
                the size of the dataset, other fields by keyword if they differ from their default.
            dataset_size: number of examples.
            n: number of steps, passed after the fields.
            **options: `rng`, and `user_ids` if the participation keeps the examples of a user together.
        """
        fields = dataclasses.fields(participation)  # type: ignore[arg-type]  # all are dataclasses
        others = participation.given()
        needed = [others.pop(field.name) for field in fields if field.default is dataclasses.MISSING]
        return self.samplers[type(participation)](dataset_size, *needed, n, **others, **options)

    def batch_rule(self, participation: P, n: int) -> BatchRule:
        """What a tracker can check in the batches of a run.

        The default is the pattern, or nothing if every release is accounted for separately, as the pattern is
        then that of one release.
        """
        return BatchRule(None if participation.per_release else participation.pattern(n))

    def canary(self, participation: P, mechanism: Mechanism) -> Canary:
        """The worst-case example (or user) of a mechanism, for tests over many runs.

        Raises:
            UnsupportedCombinationError: by default, and if there is no test.
        """
        del mechanism
        raise UnsupportedCombinationError(
            f"no test under {participation!r}",
            supported=offered("canary"),
        )

    def canary_score(
        self, participation: P, executed: Strategy, outputs: FloatArray, sigma: float, weights: FloatArray
    ) -> FloatArray | None:
        """Log-likelihood ratios of canaries in one run, when their participations are not known.

        Args:
            participation: which examples take part when.
            executed: C of the executed steps.
            outputs: C applied to the values released along each canary, shape (m, n).
            sigma: > 0.
            weights: weight of a canary's gradient in each step, shape (n,).

        Returns:
            Shape (m,); None by default: the participations of the canaries must then be known.
        """
        del participation, executed, outputs, sigma, weights
        return None

    def dataset_size_of(self, participation: P, batch_size: float) -> tuple[float, bool] | None:
        """The dataset size that an expected batch size implies, and whether it must be an integer.

        None by default: the batch size does not determine it.
        """
        del participation, batch_size
        return None

    def batch_size_of(self, participation: P, planned: float) -> float:
        """The expected batch size if a plan requests `planned` examples; `planned` by default."""
        del participation
        return planned

    def structure(self, participation: P) -> Structure:
        """What a search over strategies or risks needs to know; the pattern determines it by default."""
        del participation
        return Structure()

    def renewed(self, participation: P) -> Participation | None:
        """The same participation with a new allocation in every epoch; None by default."""
        del participation
        return None

    def nodes_refusal(self, participation: P) -> str:
        """Why certificates store no nodes of a privacy profile under it; empty if they do."""
        if participation.random and not participation.certain:
            return "which nothing checks"
        return "whose profile is known everywhere at once"


def add_scheme(scheme: Scheme[Any]) -> Scheme[Any]:
    """Register a scheme and its participations, also for files and plans. Registering twice has no effect.

    Raises:
        InvalidParameterError: if it is not a Scheme, or one of its participations is not a frozen dataclass
            or has a name that is taken; nothing is registered then.
    """
    if not isinstance(scheme, Scheme) or not hasattr(scheme, "samplers"):
        raise InvalidParameterError("scheme", scheme, "a Scheme object with samplers")
    added: list[type[Participation]] = []
    try:
        for kind in scheme.samplers:
            if scheme_with(kind) is not scheme:
                register(kind, scheme)
                added.append(kind)
    except BaseException:
        for kind in added:
            forget(kind)
        raise
    return scheme


def remove_scheme(scheme: Scheme[Any]) -> None:
    """Undo `add_scheme`, for code that adds a scheme temporarily.

    Raises:
        InvalidParameterError: if the scheme is not registered.
    """
    if any(scheme_with(kind) is not scheme for kind in scheme.samplers):
        raise InvalidParameterError("scheme", scheme, "a registered scheme")
    for kind in scheme.samplers:
        forget(kind)


def schemes() -> tuple[Scheme[Any], ...]:
    """Every scheme once, in the order of registration, including those of entry points."""
    found = dict.fromkeys(scheme_with(kind) for kind in kinds())
    return tuple(scheme for scheme in found if isinstance(scheme, Scheme))


def offered(what: str) -> str:
    """The schemes that offer a feature, as worded in errors."""
    return ", ".join(one.offers[what] for one in schemes() if what in one.offers)


def scheme_of(participation: Participation) -> Scheme[Any]:
    """The scheme of a participation.

    Raises:
        UnsupportedCombinationError: if no scheme has it.
    """
    scheme = scheme_with(type(participation))
    if scheme is None and type(participation) in kinds():  # from an entry point, which `kinds` loads
        scheme = scheme_with(type(participation))
    if not isinstance(scheme, Scheme):
        raise UnsupportedCombinationError(
            f"no sampling scheme has the participation {participation!r}",
            supported=", ".join(kind.__name__ for kind in kinds()),
        )
    return scheme


def find_folders(package: str, path: Sequence[str]) -> None:
    """Add the schemes of all folders of a package, by name; entry points are loaded on first use.

    Args:
        package: its dotted name.
        path: its `__path__`.
    """
    for found in sorted(pkgutil.iter_modules(path), key=lambda one: one.name):
        if found.ispkg:
            add_scheme(importlib.import_module(f"{package}.{found.name}.scheme").SCHEME)
    register_later(_find_entry_points)


def _find_entry_points() -> None:
    for point in importlib.metadata.entry_points(group=_GROUP):
        add_scheme(point.load())


def accountant_for(
    mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None = None
) -> Accountant:
    """The accountant of a mechanism; `rng` is used by randomised accountants.

    Raises:
        UnsupportedCombinationError: if no theorem covers the mechanism.
    """
    own = mechanism.participation
    return scheme_of(own).accountant(own, mechanism, method, rng)


def effective_method(participation: Participation, method: Method | None) -> Method:
    """The method that `accountant_for` uses: the default in place of None, and Exact if nothing is random."""
    if participation.certain:
        return method if isinstance(method, Rdp) else Exact()
    return scheme_of(participation).default(participation) if method is None else method


def unsampled_method(participation: Participation) -> Method | None:
    """A method whose result is not random; None if the result of the default method is not random."""
    return scheme_of(participation).unsampled(participation)


def method_among(participation: Participation, method: Method | None, calls: int) -> Method | None:
    """The method for one of several calls of which one will be selected.

    Selecting by the results adds failure probability, so a certified sample gets a share of its beta.
    """
    if method is None and not participation.certain:
        return scheme_of(participation).shared(participation, calls)
    used = effective_method(participation, method)
    shared = used.among(calls)
    return method if shared == used else shared
