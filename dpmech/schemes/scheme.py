"""Scheme: all that the library knows of one sampling scheme, as one object; and how schemes are found."""

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
from dpmech.engines import Accountant, Canary, Certified, Exact, Method, Rdp
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
    """What a tracker checks of every batch. That batches have the right law cannot be seen in them.

    Args:
        pattern: how often and how far apart one example takes part; None where every step is sampled anew.
        cycle: how many groups take turns, each example in one of them; None without groups.
        epoch: how many steps an epoch has in each of which everyone takes part once, in an order of its own;
            None without that.
        dataset_size: the number of examples that the claim is about; None where any will do.
        largest: the most examples of one batch; None without a limit.
        exactly: how many examples every batch has; None where that is left to chance or to the dataset.
    """

    pattern: Pattern | None
    cycle: int | None = None
    epoch: int | None = None
    dataset_size: int | None = None
    largest: int | None = None
    exactly: int | None = None


@dataclasses.dataclass(frozen=True)
class Structure:
    """How the releases hang together that one unit may join.

    With neither bins nor cycle it is the sensitivity over the pattern that decides about noise.

    Args:
        bins: the mixture of Gaussians over that many bins decides; None where it does not.
        cycle: the releases a unit may join are so many steps apart, and compose, if the strategy has at most
            as many bands; 1 where noise has to be independent. None where
            releases are not sampled one by one.
        not_fitted: why no strategy is fitted under it, and what to do instead; None where one is.
        judged: whether a strategy can be judged by a number that needs no samples.
    """

    bins: int | None = None
    cycle: int | None = None
    not_fitted: UnsupportedCombinationError | None = None
    judged: bool = True


def independent_noise_only(participation: object) -> UnsupportedCombinationError:
    """Nothing is fitted where noise has to be independent and of one size."""
    return UnsupportedCombinationError(
        f"nothing is fitted under {participation!r}, which takes independent noise of one size",
        supported="Identity there; other participations here",
    )


def as_of_one_example(participation: object, alike: str) -> UnsupportedCombinationError:
    """Nothing is fitted for users with several examples where a fit for one example is best for them too."""
    return UnsupportedCombinationError(
        f"nothing is fitted under {participation!r}",
        supported=f"a fit under {alike} with the same numbers: sigma is a multiple of that of one "
        "example, so that coefficients which are best there are best here",
    )


def not_built(participation: object) -> UnsupportedCombinationError:
    """No fit is built."""
    return UnsupportedCombinationError(f"nothing is fitted under {participation!r}", supported=offered("fit"))


_GROUP = "dpmech.schemes"  # of entry points: each names a Scheme object


P = TypeVar("P", bound=Participation)


class Scheme(abc.ABC, Generic[P]):
    """One sampling scheme: its participations, which accountant covers them, and the sampler.

    The rest of the library asks a scheme, and never which one it is. A folder `dpmech/schemes/<name>` with a
    module `scheme` that binds `SCHEME`, or an entry point of the group `dpmech.schemes`, adds one.

    Attributes:
        offers: what not every scheme has (`canary`, `event`, `fit`, `nodes`, `risk`), each with the words in
            which errors name it.
        samplers: the kinds of participation, each with what makes its sampler, as `new_sampler` calls it.
    """

    offers: ClassVar[Mapping[str, str]] = {}
    samplers: Mapping[type[Participation], Callable[..., Sampler]]

    @abc.abstractmethod
    def default(self, participation: P) -> Method:
        """The method that None stands for."""

    def unsampled(self, participation: P) -> Method | None:
        """A method whose result is a bound and that draws nothing, where the default one draws."""
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
            participation: that of the mechanism.
            mechanism: what runs.
            method: None for the default one.
            rng: random numbers of sampled accountants; None for their own.

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
            InvalidParameterError: on a bad argument, or one that this scheme does not take.
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
        """What `sampler` makes, once its arguments are checked: the entry of `samplers` is called.

        Args:
            participation: who takes part when. Fields without a default are given in order after the size of
                the dataset, others by keyword where they are not at their default.
            dataset_size: number of examples.
            n: number of steps, given after the fields.
            **options: `rng`, and `user_ids` where the participation keeps the examples of a user together.
        """
        fields = dataclasses.fields(participation)  # type: ignore[arg-type]  # all are dataclasses
        others = participation.given()
        needed = [others.pop(field.name) for field in fields if field.default is dataclasses.MISSING]
        return self.samplers[type(participation)](dataset_size, *needed, n, **others, **options)

    def batch_rule(self, participation: P, n: int) -> BatchRule:
        """What can be seen in the batches of a run, for a tracker.

        Unless overridden it is the pattern; nothing where every release is accounted for by itself, as the
        pattern is then that of one release.
        """
        return BatchRule(None if participation.per_release else participation.pattern(n))

    def canary(self, participation: P, mechanism: Mechanism) -> Canary:
        """The worst example (or user) of a mechanism, for tests of many runs.

        Raises:
            UnsupportedCombinationError: unless overridden, and where there is no test.
        """
        del mechanism
        raise UnsupportedCombinationError(
            f"no test under {participation!r}",
            supported=offered("canary"),
        )

    def canary_score(
        self, participation: P, executed: Strategy, outputs: FloatArray, sigma: float, weights: FloatArray
    ) -> FloatArray | None:
        """Log-likelihood ratios of canaries in one run, of which nobody knows when they took part.

        Args:
            participation: who takes part when.
            executed: C of the steps that were executed.
            outputs: C applied to what was released along each canary, shape (m, n).
            sigma: > 0.
            weights: of a canary's gradient in each step, shape (n,).

        Returns:
            Shape (m,); None unless overridden: when they took part must then be known.
        """
        del participation, executed, outputs, sigma, weights
        return None

    def dataset_size_of(self, participation: P, batch_size: float) -> tuple[float, bool] | None:
        """How many examples an expected batch size stands for, and whether that number must be an integer.

        None unless overridden: the batch size does not tell.
        """
        del participation, batch_size
        return None

    def batch_size_of(self, participation: P, planned: float) -> float:
        """The expected batch size where a plan asks for `planned` examples: that, unless overridden."""
        del participation
        return planned

    def structure(self, participation: P) -> Structure:
        """What a search over strategies or risks has to know; the pattern decides, unless overridden."""
        del participation
        return Structure()

    def renewed(self, participation: P) -> Participation | None:
        """The same with a new allocation every epoch; None unless overridden: nothing is allocated."""
        del participation
        return None

    def nodes_refusal(self, participation: P) -> str:
        """Why no certificate keeps nodes of a profile under it; empty where it does."""
        if participation.random and not participation.certain:
            return "which nothing checks"
        return "whose profile is known everywhere at once"


def add_scheme(scheme: Scheme[Any]) -> Scheme[Any]:
    """Make a scheme and its participations known, to files and plans too; once is enough, twice does no harm.

    Raises:
        InvalidParameterError: if it is no Scheme, or one of its participations is no frozen record, or has a
            name that is taken; nothing of it is known then.
    """
    if not isinstance(scheme, Scheme):
        raise InvalidParameterError("scheme", scheme, "a Scheme object")
    added: list[type[Participation]] = []
    try:
        for kind in scheme.samplers:
            if scheme_with(kind) is not scheme:
                register(kind, scheme)
                added.append(kind)
    except InvalidParameterError:
        for kind in added:
            forget(kind)
        raise
    return scheme


def remove_scheme(scheme: Scheme[Any]) -> None:
    """Undo `add_scheme`; for what added one for a while.

    Raises:
        InvalidParameterError: if it is not there.
    """
    for kind in scheme.samplers:
        forget(kind)


def schemes() -> tuple[Scheme[Any], ...]:
    """Every scheme, each once, in the order in which they were added; those of entry points too."""
    found = dict.fromkeys(scheme_with(kind) for kind in kinds())
    return tuple(scheme for scheme in found if isinstance(scheme, Scheme))


def offered(what: str) -> str:
    """Which schemes offer something, in the words of an error."""
    return ", ".join(one.offers[what] for one in schemes() if what in one.offers)


def scheme_of(participation: Participation) -> Scheme[Any]:
    """The scheme of a participation.

    Raises:
        UnsupportedCombinationError: if none has it.
    """
    scheme = scheme_with(type(participation))
    if scheme is None and type(participation) in kinds():  # of an entry point, which `kinds` loads
        scheme = scheme_with(type(participation))
    if not isinstance(scheme, Scheme):
        raise UnsupportedCombinationError(
            f"no sampling scheme has the participation {participation!r}",
            supported=", ".join(kind.__name__ for kind in kinds()),
        )
    return scheme


def find_folders(package: str, path: Sequence[str]) -> None:
    """Add the schemes of all folders of a package, by name; those of entry points follow when asked for.

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
    """The accountant of a mechanism; `rng` serves randomised ones.

    Raises:
        UnsupportedCombinationError: if no theorem covers it.
    """
    own = mechanism.participation
    return scheme_of(own).accountant(own, mechanism, method, rng)


def effective_method(participation: Participation, method: Method | None) -> Method:
    """What `accountant_for` acts on: the default in place of None, and Exact where nothing is random."""
    if participation.certain:
        return method if isinstance(method, Rdp) else Exact()
    return scheme_of(participation).default(participation) if method is None else method


def unsampled_method(participation: Participation) -> Method | None:
    """The method whose result leaves nothing to chance; None where that of the default one does not."""
    return scheme_of(participation).unsampled(participation)


def method_among(participation: Participation, method: Method | None, calls: int) -> Method | None:
    """The method for one of several calls of which one will be picked.

    Picking by what came out is one more way to fail: a certified sample gets a share of its beta. Of an
    estimate nothing is proved that could be kept.
    """
    used = effective_method(participation, method)
    return used.among(calls) if calls > 1 and isinstance(used, Certified) else method
