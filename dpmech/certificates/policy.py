"""Policy: rules that a project sets for claims, in addition to their being true."""

import dataclasses
import math

from dpmech.certificates.keys import PublicKey
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import Kind


@dataclasses.dataclass(frozen=True)
class Policy:
    """Rules that `dm.verify` applies to certificates, run records and ledgers; None is no rule.

    For a run record, the rules apply to the certificate in it. For a ledger, they apply to its total: the
    budget if it has one, otherwise the eps at `max_delta`, or at the sum of its deltas.

    Args:
        max_eps: largest eps, > 0.
        max_delta: largest delta, in (0, 1).
        max_delta_times_dataset_size: largest product of delta and the number of examples, > 0; it should be
            far below 1, because publishing every record with probability delta satisfies this delta.
        dataset_size: number of examples. If sampling and batch size imply a larger number, the larger one is
            used. If no number is given or implied, that rule is violated.
        forbidden_guarantees: kinds of guarantee that are refused.
        allowed_adjacencies: None for all.
        allowed_units: None for all.
        max_age_days: the largest number of days since a trusted key last signed the file, > 0. A certificate
            has no date except that of a signature.
        require_signature: whether an unsigned file is refused.
        require_cryptographic_generator: whether a run record is refused unless it states that its noise came
            from a cipher, and also its batches if the guarantee depends on their randomness.
        require_decided: whether a file is refused if the checker neither proved nor refuted an upper bound
            that it states next to its claim: the eps of the executed steps, an eps below the claimed one, or
            upper ends of a privacy profile. Without this rule, such bounds are listed as NOT CHECKED.
        trusted_keys: public keys, in addition to those that the caller passes.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> import dpmech as dm
        >>> rules = dm.Policy(max_eps=4.0, forbidden_guarantees=(dm.Kind.ESTIMATE,))
        >>> cal = dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5)
        >>> dm.verify(cal.certificate(), policy=rules).failures
        ('policy max_eps: eps 8, at most 4 is allowed',)
    """

    max_eps: float | None = None
    max_delta: float | None = None
    max_delta_times_dataset_size: float | None = None
    dataset_size: int | None = None
    forbidden_guarantees: tuple[Kind, ...] = ()
    allowed_adjacencies: tuple[Adjacency, ...] | None = None
    allowed_units: tuple[Unit, ...] | None = None
    max_age_days: float | None = None
    require_signature: bool = False
    require_cryptographic_generator: bool = False
    require_decided: bool = False
    trusted_keys: tuple[PublicKey, ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_eps", "max_delta", "max_delta_times_dataset_size", "max_age_days"):
            value = getattr(self, name)
            if value is not None:
                below_one = name == "max_delta"
                most = 1.0 if below_one else math.inf
                checked = check_real(
                    name, value, minimum=0.0, maximum=most, open_minimum=True, open_maximum=below_one
                )
                object.__setattr__(self, name, checked)
        if self.dataset_size is not None:
            check_integer("dataset_size", self.dataset_size, minimum=1, maximum=10**15)
        for name in ("require_signature", "require_cryptographic_generator", "require_decided"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameterError(name, getattr(self, name), "True or False")
        members: tuple[tuple[str, type], ...] = (
            ("forbidden_guarantees", Kind),
            ("allowed_adjacencies", Adjacency),
            ("allowed_units", Unit),
            ("trusted_keys", PublicKey),
        )
        for name, kind in members:
            values = getattr(self, name)
            if values is None and name.startswith("allowed"):
                continue
            if not isinstance(values, tuple | list) or not all(isinstance(one, kind) for one in values):
                raise InvalidParameterError(name, values, f"a tuple of {kind.__name__}")
            object.__setattr__(self, name, tuple(values))

    @classmethod
    def check(cls, value: object) -> "Policy":
        """Return a Policy, or raise InvalidParameterError."""
        if not isinstance(value, cls):
            raise InvalidParameterError("policy", value, "a Policy, or None")
        return value

    @property
    def needs_key(self) -> bool:
        """Whether a rule requires a key although the policy names none."""
        return not self.trusted_keys and (self.require_signature or self.max_age_days is not None)
