"""Certificate: a claim, its evidence and its training requirements in one JSON file."""

import dataclasses
import functools
import itertools
import os
import platform
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from dpmech.certificates.adaptive_clip import AdaptiveClip, clip_norm_from, clip_norm_stated
from dpmech.certificates.claim import Claim, Evidence, check_unedited, with_checksum
from dpmech.certificates.document import (
    SCHEMA_VERSION,
    Document,
    checksum_of_document,
    differences,
    from_plain,
    parse,
    to_plain,
)
from dpmech.engines import (
    Composition,
    Curve,
    Method,
    Nodes,
    PrivacyProfile,
)
from dpmech.exceptions import (
    CertificateError,
    DpmechError,
    InvalidParameterError,
    UnsupportedCombinationError,
)
from dpmech.guards import check_integer
from dpmech.mechanism import Adjacency, Mechanism, PrivacyBudget, Strategy, Unit, decoder_work
from dpmech.numerics import Bounds, FloatArray, Guarantee, Kind, Provenance, percent, spend, typed, up
from dpmech.schemes import offered, scheme_of


def training_requirements(claim: Claim) -> dict[str, str]:
    """Steps, sampler, clipping, noise and denominator, one sentence each."""
    n = claim.strategy.n
    own = claim.clip_norm
    adaptive = own if isinstance(own, AdaptiveClip) else None
    clip = "the clip norm" if own is None else f"{own!r}" if adaptive is None else "the clip norm of the step"
    size = "a public constant" if claim.expected_batch_size is None else f"{claim.expected_batch_size!r}"
    requirements = {
        "steps": f"Release at most {n} noisy sums. A run that needs more steps needs a new certificate.",
        "sampler": claim.participation.requirement(n),
        "clipping": f"Scale every example's gradient down to an L2 norm of at most {clip} before summing.",
        "noise": (
            f"Add to the sum of step t the row t of sigma * clip_norm * C^-1 Z, with sigma = {claim.sigma!r} "
            "and Z independent standard normal, drawn once, from operating-system entropy, kept secret."
        ),
        "denominator": f"Divide by {size}, never by the number of examples that a step happened to draw.",
    }
    if claim.unit is Unit.USER and claim.participation.unit is None:
        requirements["sampler"] = (
            f"The examples of this sentence are users, all data of one each. {requirements['sampler']}"
        )
        requirements["clipping"] = (
            "Take one contribution of every user in the batch, made of that user's data alone, such as the "
            f"mean of the gradients, and scale it down to an L2 norm of at most {clip} before summing."
        )
        requirements["denominator"] = (
            f"Divide by {size}, never by the number of users that a step happened to draw."
        )
    of_users = claim.unit is Unit.USER and claim.adjacency is Adjacency.ZERO_OUT
    if of_users and not claim.participation.users_together:
        requirements["sampler"] += (
            " One example may also be the whole contribution of several users, its owners, if then for each "
            "of them at most one is kept"
            if claim.participation.unit is None
            else " An example may also belong to several users, if then for each of them at most so many are "
            "kept"
        ) + (
            ", chosen by who owns what alone: both datasets have the same examples and owners, and "
            "gradients of zero stand for those of the user that one of them lacks."
        )
    if claim.dataset_size is not None:
        requirements["denominator"] += (
            f" The dataset size, {claim.dataset_size}, is a declared public number: the guarantee does not "
            "hide it."
            if claim.mechanism.hides_size
            else f" The dataset size, {claim.dataset_size}, is public."
        )
    if adaptive is not None:
        requirements["clipping"] += _norm_of_the_step(adaptive, size)
        requirements["noise"] = _noise_of_both(adaptive, claim.sigma)
    return requirements


def _norm_of_the_step(clip: AdaptiveClip, size: str) -> str:
    return (
        f" It is {clip.initial!r} at step 0, and from one step to the next it is multiplied by "
        f"exp(-{clip.rate!r} (s - {clip.quantile!r})), s = 0.5 + (noised count of the step) / {size}. The "
        "count is the sum over the same batch of +0.5 for what was no longer than the clip norm of the step, "
        "-0.5 for what was, and 0 for what was zero."
    )


def _noise_of_both(clip: AdaptiveClip, sigma: float) -> str:
    return (
        f"Add to the sum of step t the row t of {clip.gradient_sigma(sigma)!r} * (clip norm of the step) * "
        f"C^-1 Z, and to the count of step t the row t of {clip.count_stddev(sigma)!r} * C^-1 Z', Z and Z' "
        "independent standard normal, drawn once, from operating-system entropy, kept secret. Both together "
        f"are one release of sigma = {sigma!r}; the count without its noise is released nowhere."
    )


@dataclasses.dataclass(frozen=True)
class ProfileNodes:
    """Bounds on both directions of a mechanism's privacy profile, at nodes.

    Attributes:
        curves: the composed curves, each with the number of times it is composed: one curve, or one per kind
            of epoch.
        guarantee: joint guarantee of all nodes; a sampling error is outside delta.
        by: how the bounds were computed.

    Raises:
        InvalidParameterError: if there is no curve, or the bounds are an estimate.
    """

    curves: tuple[tuple[Curve, int], ...]
    guarantee: Guarantee
    by: Provenance

    def __post_init__(self) -> None:
        if not self.curves:
            raise InvalidParameterError("curves", self.curves, "at least one")
        for _, times in self.curves:
            check_integer("times", times, minimum=1)
        if not self.guarantee.rigorous or self.guarantee.inside_delta:
            raise InvalidParameterError(
                "guarantee", self.guarantee, "a bound, or one that holds with probability 1 - beta"
            )

    @classmethod
    def of(cls, profile: PrivacyProfile, mechanism: Mechanism, sigma: float) -> Self | None:
        """The nodes of a profile of this mechanism at this noise scale; None if it has none.

        A profile without nodes follows from mechanism and noise scale, so nothing has to be stored.

        Raises:
            InvalidParameterError: if it is not a profile, belongs to another mechanism, or is an estimate.
            UnsupportedCombinationError: if it has nodes although the mechanism has a curve in closed form.
        """
        if not isinstance(profile, PrivacyProfile):
            raise InvalidParameterError("profile", profile, "a PrivacyProfile, such as cal.profile() gives")
        if profile.of != (mechanism, sigma):
            raise InvalidParameterError(
                "profile",
                profile,
                f"that of {mechanism!r} at sigma={sigma!r}, as cal.profile() or dm.profile gives it; a "
                "composed one belongs to a dm.Ledger",
            )
        if not profile.parts.curves:
            return None
        if reason := cls.refusal(mechanism):
            raise UnsupportedCombinationError(
                f"nodes of {mechanism!r}, {reason}",
                supported="a certificate without a profile, which is computed again where it is asked for",
            )
        return cls(profile.parts.curves, profile.guarantee, profile.by)

    @staticmethod
    def refusal(mechanism: Mechanism) -> str:
        """Why certificates do not store nodes for this mechanism; empty if they do."""
        return scheme_of(mechanism.participation).nodes_refusal(mechanism.participation)

    def profile(self, mechanism: Mechanism, sigma: float, unit: Unit) -> PrivacyProfile:
        """The profile that these nodes describe."""
        return PrivacyProfile(
            Composition(curves=self.curves),
            self.guarantee,
            self.by,
            mechanism.adjacency,
            unit,
            (mechanism, sigma),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "guarantee": self.guarantee.to_dict(),
            "by": self.by.to_dict(),
            "curves": [
                {"times": times}
                | {
                    name: {"eps": list(side.eps), "lower": list(side.lower), "upper": list(side.upper)}
                    for name, side in (("remove", curve.remove), ("add", curve.add), ("larger", curve.larger))
                    if side is not None
                }
                for curve, times in self.curves
            ],
        }

    @classmethod
    def of_evidence(cls, evidence: Mapping[str, Any], mechanism: Mechanism) -> Self | None:
        """Rebuild from the entry `profile` of a certificate's evidence, see `to_dict`; None if there is none.

        Raises:
            InvalidParameterError: if the entry is malformed.
            UnsupportedCombinationError: if `of` stores no nodes for this mechanism.
        """
        if "profile" not in evidence:
            return None
        data = evidence["profile"]
        if reason := cls.refusal(mechanism):
            raise UnsupportedCombinationError(
                f"evidence.profile has nodes of {mechanism!r}, {reason}",
                supported=f"evidence.profile under {offered('nodes')} only",
            )
        return cls(
            tuple((_curve(one), one["times"]) for one in data["curves"]),
            Guarantee.from_dict(data["guarantee"]),
            Provenance.from_dict(data["by"]),
        )


def _curve(data: Mapping[str, Any]) -> Curve:
    sides = {name: _nodes(data[name]) for name in ("remove", "add", "larger") if name in data}
    return Curve(sides["remove"], sides["add"], sides.get("larger"))


def _nodes(data: Mapping[str, Any]) -> Nodes:
    return Nodes(tuple(data["eps"]), tuple(data["lower"]), tuple(data["upper"]))


_METHODS: dict[str, type[Method]] = {
    kind.__name__: kind for kind in sorted(Method.__subclasses__(), key=lambda kind: kind.__name__)
}
# The entries of a claim that describe the mechanism.
_MECHANISM = ("strategy", "participation", "adjacency", "unit")
# Settings of methods that older files lack, with the values that held then.
_AS_BEFORE = (("calls", 1),)
# Packages that noise scales are computed with.
_PACKAGES = ("dpmech", "numpy", "scipy", "numba", "dp-accounting", "prv-accountant")
# At most this many coefficients are stored; the definition is always complete.
_LEADING = 16_384
# Entries that only work on all n steps can check: `load` checks them within these limits, `verify` always.
_DERIVED = {"claim": ("coefficients",), "evidence": ("noise_multiplier", "rmse", "max_se")}
_LOAD_SECONDS, _LOAD_MEMORY = 20.0, 1e9
_UNFIT = (DpmechError, ArithmeticError, MemoryError, RecursionError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True)
class Certificate(Claim, Document):
    """A claim that can be saved, loaded and verified, as returned by `Calibration.certificate`.

    **Guarantee:** that of the calibration, as stated in the first line of the file, where an estimate is
    marked ESTIMATE. Attributes that a Calibration also has have the same meaning.

    Attributes:
        versions: (package, version) pairs of the packages that computed the numbers.
        nodes: nodes of the privacy profile that was added as further evidence; None if there are none.

    Raises:
        InvalidParameterError: if sigma, clip_norm or expected_batch_size is not a finite number > 0, if
            dataset_size is not an integer >= 1, or if a bound on eps is negative.

    Example:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.8), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> certificate = cal.certificate(clip_norm=1.0, expected_batch_size=40)
        >>> certificate.budget, certificate.sigma == cal.sigma
        (PrivacyBudget(eps=2.0, delta=1e-05), True)
    """

    versions: tuple[tuple[str, str], ...] = ()
    nodes: ProfileNodes | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.achieved.lower < 0.0:
            raise InvalidParameterError("achieved", self.achieved, "Bounds on eps, which is >= 0")
        if not self.versions:
            object.__setattr__(self, "versions", _versions())

    @property
    def headline(self) -> str:
        """The guarantee in one line, marked ESTIMATE if it is only an estimate."""
        if self.guarantee.kind is Kind.ESTIMATE:
            level = percent(1.0 - self.guarantee.error)
            return f"ESTIMATE: not a bound, the end of a two-sided {level} % confidence interval"
        if self.guarantee.kind is Kind.PROBABLE:
            # Print every digit of beta: readers decide by it.
            words, error = str(dataclasses.replace(self.guarantee, inside_delta=False)), self.guarantee.error
            text = f"{words} over dpmech's own sampling, beta = {error!r}"
            return f"{text}, inside delta" if self.guarantee.inside_delta else text
        return str(self.guarantee)

    @functools.cached_property
    def curve(self) -> PrivacyProfile | None:
        """The privacy profile stored with the certificate; None if `dpmech.profile` computes it directly."""
        return None if self.nodes is None else self.nodes.profile(self.mechanism, self.sigma, self.unit)

    def certificate(
        self,
        clip_norm: float | AdaptiveClip | None = None,
        expected_batch_size: float | None = None,
        *,
        dataset_size: int | None = None,
        profile: PrivacyProfile | None = None,
    ) -> Self:
        """This certificate, with the given terms, and nodes of the given profile, instead of its own."""
        check_unedited(self)
        if clip_norm is None and expected_batch_size is None and dataset_size is None and profile is None:
            return self
        nodes = self.nodes if profile is None else ProfileNodes.of(profile, self.mechanism, self.sigma)
        return with_checksum(
            dataclasses.replace(
                self,
                clip_norm=self.clip_norm if clip_norm is None else clip_norm,
                expected_batch_size=(
                    self.expected_batch_size if expected_batch_size is None else expected_batch_size
                ),
                dataset_size=self.dataset_size if dataset_size is None else dataset_size,
                nodes=nodes,
            )
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate to a file, atomically.

        Raises:
            InvalidParameterError: if the file cannot be written.
            CertificateError: if this certificate was edited.
        """
        check_unedited(self)
        super().save(path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, checksum included; what `save` writes."""
        document: dict[str, Any] = to_plain(self._content())
        return document | {"checksum": checksum_of_document(document)}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Like `load`, from the text of a file."""
        certificate, derived = cls.read(text)
        certificate.check_quickly(derived)
        return certificate

    @classmethod
    def read(cls, text: str) -> tuple[Self, dict[str, Any]]:
        """Parse a certificate; also return its stated numbers that are costly to recompute.

        Everything else is checked, without forming an array of n entries.

        Raises:
            CertificateError: if its version or kind is unknown, or it is inconsistent.
        """
        document = from_plain(parse(text))
        try:
            certificate = with_checksum(cls(**_parts(document["claim"], document["evidence"])))
            recomputed = certificate._stated()
        except CertificateError:
            raise
        except _UNFIT as error:
            raise CertificateError(f"the claim is not one that dpmech could have made: {error}") from error
        derived = {
            part: {name: document[part].pop(name) for name in names} for part, names in _DERIVED.items()
        }
        _compare(document, recomputed | {"checksum": document["checksum"]})
        return certificate, derived

    def check_quickly(self, derived: dict[str, Any]) -> None:
        """Run `check_derived` if its estimate is at most 20 seconds and 1 GB; else leave it to `verify`."""
        work = decoder_work(self.strategy)
        if work.within(_LOAD_SECONDS, _LOAD_MEMORY):
            spend(work.seconds, work.memory, what=f"the errors of {self.strategy!r}")
            self.check_derived(derived)

    def check_derived(self, derived: dict[str, Any]) -> None:
        """Recompute what `read` leaves out: coefficients and errors.

        Raises:
            CertificateError: if they differ from those of the strategy.
        """
        try:
            recomputed = self._derived()
        except _UNFIT as error:
            raise CertificateError(f"the claim is not one that dpmech could have made: {error}") from error
        _compare(derived, recomputed)

    def __str__(self) -> str:
        return "\n".join(
            [
                self.headline,
                f"eps {typed(self.budget.eps)}, delta {typed(self.budget.delta)}, {self.adjacency.value}, "
                f"unit {self.unit.value}",
                self.attack_words,
                f"sigma {up(self.sigma)} at clip norm 1: {self.sigma_use}",
                *map(repr, (self.strategy, self.participation)),
                *training_requirements(self).values(),
            ]
        )

    def _content(self) -> dict[str, Any]:
        content, derived = self._stated(), self._derived()
        return content | {name: content[name] | derived[name] for name in derived}

    def _derived(self) -> dict[str, Any]:
        """Entries that take work on all n steps to derive from the strategy."""
        return {
            "claim": {"coefficients": _coefficients(self.strategy)},
            "evidence": {
                "noise_multiplier": self.noise_multiplier,
                "rmse": self.rmse(),
                "max_se": self.max_se(),
            },
        }

    def _stated(self) -> dict[str, Any]:
        """All other entries; computing them costs no more than the length of the text."""
        return {
            "guarantee": self.headline,
            "schema_version": SCHEMA_VERSION,
            "claim": {
                "eps": self.budget.eps,
                "delta": self.budget.delta,
                "adjacency": self.adjacency.value,
                "sigma": self.sigma,
                "unit": self.unit.value,
                "n": self.strategy.n,
                "strategy": self.strategy.to_dict(),
                "strategy_hash": self.strategy.fingerprint(),
                "participation": self.participation.to_dict(),
                "clip_norm": clip_norm_stated(self.clip_norm, self.sigma),
                "expected_batch_size": self.expected_batch_size,
            }
            | ({} if self.dataset_size is None else {"dataset_size": self.dataset_size}),
            "evidence": ({} if self.evidence.randomness is None else {"randomness": self.evidence.randomness})
            | {
                "method": self.method,
                "accountant": _method_to_dict(self.evidence.accountant),
                "rtol": self.evidence.rtol,
                "samples": self.evidence.samples,
                "rng_supplied": self.evidence.rng_supplied,
                "sensitivity": self.sensitivity.to_dict(),
                "achieved": self.achieved.to_dict(),
                "platform": {
                    "machine": self.evidence.machine,
                    "longdouble_bits": self.evidence.longdouble_bits,
                },
                "versions": dict(self.versions),
            }
            | ({} if self.nodes is None else {"profile": self.nodes.to_dict()}),
            "trainer": training_requirements(self),
            "fingerprint": self.fingerprint(),
        }


def _compare(claimed: dict[str, Any], recomputed: dict[str, Any]) -> None:
    found = list(itertools.islice(differences(claimed, recomputed), 5))
    if found:
        raise CertificateError(
            "entries contradict each other: " + "; ".join(found), claimed=claimed, recomputed=found
        )


def _parts(claim: dict[str, Any], evidence: dict[str, Any]) -> dict[str, Any]:
    """The constructor arguments of the certificate that a document describes."""
    _check_sizes(claim["strategy"], claim["n"])
    mechanism = Mechanism.from_dict({name: claim[name] for name in _MECHANISM})
    return {
        "mechanism": mechanism,
        "budget": PrivacyBudget(claim["eps"], claim["delta"]),
        "sigma": claim["sigma"],
        "sensitivity": Bounds.from_dict(evidence["sensitivity"]),
        "achieved": Bounds.from_dict(evidence["achieved"]),
        "evidence": Evidence(
            accountant=_method_from_dict(evidence["accountant"]),
            rtol=evidence["rtol"],
            rng_supplied=evidence["rng_supplied"],
            samples=evidence["samples"],
            randomness=evidence.get("randomness"),
            machine=evidence["platform"]["machine"],
            longdouble_bits=check_integer(
                "longdouble_bits", evidence["platform"]["longdouble_bits"], minimum=53, maximum=237
            ),
        ),
        "clip_norm": clip_norm_from(claim["clip_norm"]),
        "expected_batch_size": claim["expected_batch_size"],
        "dataset_size": claim.get("dataset_size"),
        "versions": tuple(sorted(evidence["versions"].items())),
        "nodes": ProfileNodes.of_evidence(evidence, mechanism),
    }


def _check_sizes(record: dict[str, Any], n: int) -> None:
    """Refuse a forged number of steps before arrays of that size are allocated."""
    inner = record
    while isinstance(inner.get("strategy"), dict):
        inner = inner["strategy"]
    if "n" in inner and inner["n"] != n:
        raise CertificateError(
            f"claim.n is {n}, but the strategy has {inner['n']!r} steps", claimed=n, recomputed=inner["n"]
        )


def _coefficients(strategy: Strategy) -> dict[str, Any]:
    """The coefficients of C or of C^-1, whichever is shorter, for readers without dpmech."""
    factors = strategy.factored
    if factors is None:
        nothing: FloatArray = np.zeros(0)
        return _listed("the matrix entries of the strategy", nothing, scaled=False)
    direct, inverse = factors.bands, factors.inverse_bands
    scaled = factors.scale is not None
    if inverse is not None and (direct is None or inverse < direct):
        return _listed("C^-1", factors.inverse_coefs[:inverse], scaled=scaled)
    return _listed("C", factors.coefs[:direct], scaled=scaled)


def _listed(name: str, values: FloatArray, *, scaled: bool) -> dict[str, Any]:
    return {
        "of": name,
        "columns_scaled": scaled,
        "total": int(values.size),
        "leading": values[:_LEADING].tolist(),
    }


def _method_to_dict(method: Method) -> dict[str, Any]:
    """Its type and settings; newer settings are left out at their old values."""
    fields = [field.name for field in dataclasses.fields(method) if field.name != "executor"]
    settings = {name: getattr(method, name) for name in fields}
    kept = {name: value for name, value in settings.items() if (name, value) not in _AS_BEFORE}
    return {"type": type(method).__name__} | kept


def _method_from_dict(data: dict[str, Any]) -> Method:
    kind = _METHODS.get(data["type"])
    settings = {name: value for name, value in data.items() if name != "type"}
    later = {name for name, _ in _AS_BEFORE}
    due = set() if kind is None else set(_method_to_dict(kind())) - {"type"}
    if kind is None or set(settings) - later != due or None in settings.values():
        raise InvalidParameterError("accountant", data, f"one of {', '.join(_METHODS)} with its own settings")
    return kind(**settings)


def _versions() -> tuple[tuple[str, str], ...]:
    from importlib import metadata  # takes a tenth of the time of importing dpmech

    found = {name: metadata.version(name) for name in _PACKAGES}
    return tuple(sorted((found | {"python": platform.python_version()}).items()))
