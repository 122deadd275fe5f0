"""Audit of privacy claims, published or internal: the claims compared with what dpmech certifies."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from dpmech.audits.shuffled import Shuffled, shuffled_epsilon
from dpmech.calibration import epsilon
from dpmech.engines import Method, Prv, Rdp
from dpmech.exceptions import NumericalError, UnsupportedCombinationError
from dpmech.guards import check_delta, check_eps, check_integer, check_name, check_real, check_sigma
from dpmech.ledgers import JointRelease
from dpmech.mechanism import Adjacency, Identity, Participation, Strategy
from dpmech.numerics import Bounds

# Relative tolerance of a recorded certified value; one unit of its last digit is allowed too.
_RECORD_RTOL = 5e-3


@dataclasses.dataclass(frozen=True)
class PublishedClaim:
    """A privacy claim to audit.

    Args:
        name: name of the claim.
        strategy: C; Identity for independent noise.
        participation: which examples take part when, according to the claim; or `Shuffled` batches, if the
            run was trained with them.
        sigma: noise of every block of the batch, divided by its own clip norm; it includes the sensitivity of
            C.
        delta: in (0, 1).
        claimed_eps: the claimed eps, > 0.
        rounding: half a unit of the last printed digit; a claim holds up to that.
        blocks: number of releases of this sigma that read each batch.
        adjacency: the neighbouring relation.
        note: explanation of the difference.
        recorded_eps: an independently certified eps to compare with, or None.
    """

    name: str
    # Three entries, not a Mechanism: a claim may have no theorem, and then the audit must report that.
    strategy: Strategy
    participation: Participation | Shuffled
    sigma: float
    delta: float
    claimed_eps: float
    rounding: float = 0.0
    blocks: int = 1
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    note: str = ""
    recorded_eps: float | None = None

    def __post_init__(self) -> None:
        check_name("name", self.name)
        object.__setattr__(self, "sigma", check_sigma(self.sigma))
        object.__setattr__(self, "delta", check_delta(self.delta))
        object.__setattr__(self, "claimed_eps", check_eps(self.claimed_eps))
        object.__setattr__(self, "rounding", check_real("rounding", self.rounding, minimum=0.0))
        object.__setattr__(self, "blocks", check_integer("blocks", self.blocks, minimum=1))
        if self.recorded_eps is not None:
            object.__setattr__(self, "recorded_eps", check_eps(self.recorded_eps))

    @property
    def joint_sigma(self) -> float:
        """Joint sigma of all blocks of a batch: sigma / sqrt(blocks)."""
        return JointRelease((self.sigma,) * self.blocks).sigma


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of auditing one claim.

    Attributes:
        claim: the audited claim.
        certified: bounds on eps, or None if no number could be certified.
        reason: why there are none; otherwise empty.
    """

    claim: PublishedClaim
    certified: Bounds | None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in one word.

        "holds": the certified upper bound is at most the claim, rounding of the claim included.
        "under-stated": the certified lower bound is above the claim. "undecided": the claim lies between the
        two. "refused": no theorem, or no number.
        """
        if self.certified is None:
            return "refused"
        stated = self.claim.claimed_eps + self.claim.rounding
        if self.certified.upper <= stated:
            return "holds"
        return "under-stated" if self.certified.lower > stated else "undecided"

    @property
    def ratio(self) -> float:
        """Certified upper bound over the claim; NaN without a bound. Not tight for `Shuffled` batches."""
        return math.nan if self.certified is None else self.certified.upper / self.claim.claimed_eps

    @property
    def on_record(self) -> bool:
        """Whether the recorded eps, if there is one, agrees with the result within 0.5 % or its rounding."""
        recorded = self.claim.recorded_eps
        if recorded is None:
            return True
        if self.certified is None:
            return False
        slack = max(_RECORD_RTOL * recorded, 2.0 * self.claim.rounding)
        return self.certified.lower <= recorded + slack and self.certified.upper >= recorded - slack

    @property
    def passed(self) -> bool:
        """Whether the claim holds and the record agrees."""
        return self.verdict == "holds" and self.on_record


def audit(
    claims: Sequence[PublishedClaim],
    *,
    method: Method | None = None,
    rng: np.random.Generator | int | None = None,
    progress: Callable[[PublishedClaim], None] | None = None,
) -> list[Finding]:
    """Bound the eps of each claim; blocks of one batch are joined before sampling.

    Args:
        claims: the claims to audit.
        method: as in `epsilon`; None falls back on Prv() and Rdp() if the default finds no number. `Shuffled`
            batches always use `shuffled_epsilon`.
        rng: as in `epsilon`.
        progress: called with each claim before it is audited.

    Returns:
        A Finding for each claim, in order, with the bounds of `epsilon` or `shuffled_epsilon`.

    Raises:
        InvalidParameterError: if a claim's participation does not fit its number of steps.
    """
    known: dict[tuple[object, ...], Bounds | str] = {}
    findings = []
    for claim in claims:
        if progress is not None:
            progress(claim)
        key = (claim.strategy, claim.participation, claim.joint_sigma, claim.delta, claim.adjacency)
        if key not in known:
            known[key] = _certified(claim, method, rng)
        value = known[key]
        findings.append(Finding(claim, None, value) if isinstance(value, str) else Finding(claim, value))
    return findings


def _certified(
    claim: PublishedClaim, method: Method | None, rng: np.random.Generator | int | None
) -> Bounds | str:
    """Bounds by the given method, or else by the first one that gives any; or why there are none."""
    if isinstance(claim.participation, Shuffled):
        return _of_shuffled(claim, claim.participation)
    reasons = []
    for attempt in (None, Prv(), Rdp()) if method is None else (method,):
        try:
            return epsilon(
                claim.strategy,
                claim.joint_sigma,
                claim.delta,
                participation=claim.participation,
                adjacency=claim.adjacency,
                method=attempt,
                rng=rng,
            )
        except (NumericalError, UnsupportedCombinationError) as error:
            reasons.append(str(error))
    return reasons[0]


def _of_shuffled(claim: PublishedClaim, batches: Shuffled) -> Bounds | str:
    if not isinstance(claim.strategy, Identity):
        return (
            f"{claim.strategy!r} correlates noise: for shuffled batches bounds are known for Identity alone"
        )
    try:
        return shuffled_epsilon(
            claim.strategy.n, claim.joint_sigma, claim.delta, batches, adjacency=claim.adjacency
        )
    except NumericalError as error:
        return str(error)
