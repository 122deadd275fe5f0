"""What a project allows, besides that a claim is true."""

import dataclasses
import math

from dpmech.certificates.keys import PublicKey
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import Kind


@dataclasses.dataclass(frozen=True)
class Policy:
    """Rules that `dm.verify` holds certificates, run records and ledgers to; None leaves a thing open.

    Of a run record the rules are about the certificate inside it, of a ledger about its total: its budget
    where it has one, else the eps at `max_delta`, or at the sum of its deltas.

    Args:
        max_eps: largest eps, > 0.
        max_delta: largest delta, in (0, 1).
        max_delta_times_dataset_size: largest product of delta and the number of examples, > 0; below 1, and
            the smaller the better, as a mechanism that publishes every record with probability delta has it.
        dataset_size: number of examples. What follows from sampling and batch size is larger at times; the
            larger one counts. Where nothing follows and it is not given, that rule is broken.
        forbidden_guarantees: kinds of guarantee that are refused.
        allowed_adjacencies: None for all.
        allowed_units: None for all.
        max_age_days: days since the file was signed, > 0. A certificate has no date but that of a signature.
        require_signature: whether a file without one is refused.
        require_cryptographic_generator: whether a run record is refused whose noise, or whose batches where
            the guarantee rests on their being random, did not come from a cipher, or that does not say so.
        trusted_keys: public keys, besides those that the caller names.

    Raises:
        InvalidParameterError: on a bad argument.

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
        for name in ("require_signature", "require_cryptographic_generator"):
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
        """Return a Policy, else raise InvalidParameterError."""
        if not isinstance(value, cls):
            raise InvalidParameterError("policy", value, "a Policy, or None")
        return value

    @property
    def needs_key(self) -> bool:
        """Whether some rule cannot be looked at without a key, and none is named here."""
        return not self.trusted_keys and (self.require_signature or self.max_age_days is not None)
