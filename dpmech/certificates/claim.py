"""Claim: a noise scale with everything its guarantee depends on, protected by a checksum."""

import abc
import dataclasses
import enum
import hashlib
import json
import math
import platform
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dpmech.certificates.adaptive_clip import AdaptiveClip
from dpmech.engines import Method, PrivacyProfile
from dpmech.exceptions import CertificateError, HorizonError, InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real, check_sigma
from dpmech.mechanism import (
    Adjacency,
    Mechanism,
    Participation,
    PrivacyBudget,
    Strategy,
    Unit,
    Workload,
    decoder_norm,
    decoder_row_norm,
    noise_multiplier,
    sigma_use,
)
from dpmech.numerics import LONGDOUBLE_BITS, Bounds, Guarantee, percent_up
from dpmech.schemes import scheme_of

# The executor does not affect the result.
_NO_CONTENT = frozenset({"executor"})


def checksum_of(record: object, *, without: Set[str] = frozenset()) -> str:
    """SHA-256 (hex) of the fields of a dataclass, including those of nested records.

    Fast also for large arrays, whose bytes are hashed directly. Objects of unknown types enter by their
    `repr`.

    Args:
        record: a dataclass instance.
        without: fields of `record` itself to leave out.
    """
    digest = hashlib.sha256()
    for part in _parts(record, frozenset(without)):
        # Prefixed with the length, so that no two contents give the same bytes.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(value: object, without: frozenset[str] = frozenset()) -> Iterator[bytes | memoryview]:
    if isinstance(value, enum.Enum):
        yield f"{type(value).__name__}.{value.name}".encode()
    elif dataclasses.is_dataclass(value):
        fields = [one.name for one in dataclasses.fields(value) if one.name not in without | _NO_CONTENT]
        yield f"{type(value).__name__} {len(fields)}".encode()
        for name in fields:
            yield name.encode()
            yield from _parts(getattr(value, name))
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype.str} {value.shape}".encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, tuple | list):
        yield f"sequence {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, bool) or value is None:
        yield repr(value).encode()
    elif isinstance(value, float):
        yield float(value).hex().encode()
    elif isinstance(value, int):
        yield f"integer {value:x}".encode()
    else:
        yield repr(value).encode()


if TYPE_CHECKING:
    from dpmech.certificates.certificate import Certificate


@dataclasses.dataclass(frozen=True)
class Evidence:
    """How a noise scale was computed.

    Attributes:
        accountant: the method object with its settings.
        rtol: relative tolerance of the search: how far the result may be above the smallest valid sigma.
        rng_supplied: whether the caller supplied the random numbers of a randomised accountant.
        samples: number of samples that the result depends on, both directions; None for deterministic
            accountants.
        machine: the processor used, as named by `platform.machine`.
        longdouble_bits: significand bits of the C type long double on that machine: 64, 113, or 53 if it is
            float64. Sensitivities do not use long double. Bounds of `Deterministic` do, with the rounding
            error of this precision, and dependencies may.
        randomness: identifies the random numbers of a certified sample: the first 128 bits drawn, in
            hexadecimal. Claims with equal values depend on the same sample. None without random samples, and
            in claims that are older than this field.

    Example:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> cal.certificate().evidence.accountant
        Exact()
    """

    accountant: Method
    rtol: float
    rng_supplied: bool
    samples: int | None = None
    machine: str = dataclasses.field(default_factory=lambda: platform.machine() or "unknown")
    longdouble_bits: int = LONGDOUBLE_BITS
    randomness: str | None = None


# The modules that define its subclasses.
_KINDS = {"dpmech.calibration.calibrate", "dpmech.certificates.certificate"}


@dataclasses.dataclass(frozen=True)
class Claim(abc.ABC):
    """A noise scale and everything its guarantee depends on: a Calibration or a Certificate.

    Attributes:
        mechanism: the mechanism; the sampler must realise exactly its participation.
        budget: the requested (eps, delta).
        sigma: standard deviation of the i.i.d. noise in C G + sigma Z at clip norm 1; it includes the
            sensitivity.
        sensitivity: the largest L2 norm by which one unit may change C G, at clip norm 1.
        achieved: bounds on eps at `budget.delta`; `achieved.upper <= budget.eps`.
        clip_norm: the clip norm that the trainer must use, > 0; an AdaptiveClip if it changes from step to
            step; None if unspecified.
        expected_batch_size: the public denominator that the trainer must use, > 0, or None.
        dataset_size: a public number of examples, >= 1: a declared constant, or the size of the dataset under
            ZERO_OUT and REPLACE_ONE; None if nothing published depends on it.
        evidence: accountant, tolerance, samples, and whether the caller supplied the random numbers.
        checksum: checksum of all other entries, set by `calibrate_sigma` or by reading a certificate's file;
            empty for a claim built by hand. Training refuses a claim whose checksum does not match.

    Example:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> isinstance(cal, dm.certificates.Claim), isinstance(cal.certificate(), dm.certificates.Claim)
        (True, True)
    """

    mechanism: Mechanism
    budget: PrivacyBudget
    sigma: float
    sensitivity: Bounds
    achieved: Bounds
    evidence: Evidence
    clip_norm: float | AdaptiveClip | None = None
    expected_batch_size: float | None = None
    dataset_size: int | None = dataclasses.field(default=None, kw_only=True)
    checksum: str = dataclasses.field(default="", kw_only=True, repr=False, compare=False)

    def __init_subclass__(cls) -> None:
        # Another subclass could tell the optimizer one thing and its certificate another.
        if cls.__module__ not in _KINDS:
            raise TypeError("Claim has two kinds, Calibration and Certificate, and no others")

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", check_sigma(self.sigma))
        for name in ("clip_norm", "expected_batch_size"):
            value = getattr(self, name)
            if value is not None and not (name == "clip_norm" and isinstance(value, AdaptiveClip)):
                checked = check_real(name, value, minimum=0.0, open_minimum=True)
                object.__setattr__(self, name, checked)
        if self.dataset_size is not None:
            size = check_integer("dataset_size", self.dataset_size, minimum=1)
            object.__setattr__(self, "dataset_size", size)
            own = self.participation
            stated = scheme_of(own).batch_rule(own, self.strategy.n).dataset_size
            if stated not in {None, size}:
                raise InvalidParameterError("dataset_size", size, f"None or that of {self.participation!r}")

    def __float__(self) -> float:
        return self.sigma

    @property
    def strategy(self) -> Strategy:
        """The strategy C."""
        return self.mechanism.strategy

    @property
    def participation(self) -> Participation:
        """Which examples take part at which steps."""
        return self.mechanism.participation

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation that the budget holds for."""
        return self.mechanism.adjacency

    @property
    def unit(self) -> Unit:
        """The privacy unit: one example, or a user with all their examples."""
        return self.mechanism.unit

    @property
    def attack_words(self) -> str:
        """What the budget alone implies about attacks, in a sentence; the full profile implies more."""
        percent = percent_up(self.budget.attack_rate(0.01))
        return (
            f"at 1 % false positives an attack finds at most {percent} % of the {self.unit.value}s, "
            "from (eps, delta) only; `dpmech risk` usually proves fewer"
        )

    @abc.abstractmethod
    def certificate(
        self,
        clip_norm: float | AdaptiveClip | None = None,
        expected_batch_size: float | None = None,
        *,
        dataset_size: int | None = None,
        profile: PrivacyProfile | None = None,
    ) -> "Certificate":
        """The claim as a certificate, with the given training parameters and profile."""

    @property
    def guarantee(self) -> Guarantee:
        """The kind of guarantee of `achieved`, and so of the claim."""
        return self.achieved.guarantee

    @property
    def method(self) -> str:
        """How the claim was computed, in words; `achieved.by` contains it as data."""
        return str(self.achieved.by)

    @property
    def noise_multiplier(self) -> float | None:
        """Noise of each step divided by the clip norm of an example: sigma if the noise is i.i.d., else None.

        It is also None if users are clipped as a unit, and under an AdaptiveClip. It is not sigma divided by
        the sensitivity, because sigma includes the sensitivity. `sigma_use` states whether Opacus would
        report the same eps.
        """
        return noise_multiplier(self.mechanism, self.sigma, adaptive_clip=self._adaptive_clip)

    @property
    def sigma_use(self) -> str:
        """How to use sigma: which noise it scales, and whether it is a parameter of Opacus."""
        return sigma_use(self.mechanism, adaptive_clip=self._adaptive_clip)

    @property
    def _adaptive_clip(self) -> bool:
        return isinstance(self.clip_norm, AdaptiveClip)

    def rmse(self, *, workload: Workload | None = None) -> float:
        """||B||_F sigma / sqrt(n) in units of the clip norm; it includes amplification if sigma does."""
        return decoder_norm(self.strategy, workload=workload) * self.sigma

    def max_se(self, *, workload: Workload | None = None) -> float:
        """max_i ||B[i, :]|| sigma in units of the clip norm; it includes amplification if sigma does."""
        return decoder_row_norm(self.strategy, workload=workload) * self.sigma

    def noise_variance(self, step: int, clip_norm: float, batch_size: float) -> float:
        """Phi_t: variance per coordinate of the noise in the averaged gradient of one step.

        (sigma clip_norm / batch_size)^2 ||C^-1[step, :]||^2, in units of the gradient squared.

        Args:
            step: t in [0, n - 1].
            clip_norm: > 0.
            batch_size: the public denominator, > 0: expected batch size times accumulation steps times world
                size (noise is added once).

        Raises:
            HorizonError: if the step is past the last one.
            InvalidParameterError: if an argument is invalid.
            NumericalError: if the variance is beyond the range of float64.

        References:
            noise_share eq. 1, for a general C^-1.
        """
        index = check_integer("step", step, minimum=0)
        if index >= self.strategy.n:
            raise HorizonError(index, self.strategy.n)
        clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
        size = check_real("batch_size", batch_size, minimum=0.0, open_minimum=True)
        deviation = self.sigma * clip / size * float(self.strategy.noising_row_norms()[index])
        variance = deviation * deviation
        if not math.isfinite(variance):
            raise NumericalError(f"the variance of the noise, {deviation:g} squared, is beyond float64")
        return variance

    def fingerprint(self) -> str:
        """SHA-256 (hex) of strategy, participation, adjacency, budget, sigma and unit."""
        content = {
            "strategy": self.strategy.fingerprint(),
            "participation": self.participation.to_dict(),
            "adjacency": self.adjacency.value,
            "eps": self.budget.eps,
            "delta": self.budget.delta,
            "sigma": self.sigma,
            "unit": self.unit.value,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


AnyClaim = TypeVar("AnyClaim", bound=Claim)


def with_checksum(claim: AnyClaim) -> AnyClaim:
    """The claim with its checksum; for code that computed or read its content."""
    return dataclasses.replace(claim, checksum=checksum_of(claim, without={"checksum"}))


def check_unedited(claim: AnyClaim) -> AnyClaim:
    """Return the claim if it is unchanged since it was computed or read from a checksummed file.

    Nothing is recomputed, and anyone can compute a checksum: this finds mistakes, such as a
    `dataclasses.replace` meant for a test.

    Raises:
        CertificateError: if an entry was changed afterwards, or the claim was built by hand.
    """
    found = checksum_of(claim, without={"checksum"})
    if claim.checksum != found:
        what = "was edited after it was computed" if claim.checksum else "was put together by hand"
        raise CertificateError(
            f"this {type(claim).__name__} (sigma {claim.sigma!r}) {what}, so that nothing supports it: use "
            "what dm.calibrate_sigma returns, or Certificate.load",
            claimed=claim.checksum,
            recomputed=found,
        )
    return claim
