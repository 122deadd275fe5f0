"""The sampler that realises a participation, and operations on a batch that preserve the claim."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.certificates import Claim
from dpmech.drawing import Sampler, check_steps
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import Mechanism, Participation
from dpmech.numerics import IntArray
from dpmech.schemes import scheme_of

_INTEGERS = "a one-dimensional sequence of integers"


def sampler_for(
    claim_or_participation: Claim | Mechanism | Participation,
    dataset_size: int,
    *,
    n: int | None = None,
    batch_size: int | None = None,
    drop_last: bool = False,
    user_ids: Sequence[Hashable] | npt.NDArray[np.generic] | None = None,
    declared_size: int | None = None,
    rng: object = None,
) -> Sampler:
    """Return the sampler whose batches follow a participation.

    For a claim or a mechanism under ADD_REMOVE, the number of examples is private. The `expected_batch_size`
    of the sampler is then that of the claim, or None.

    Args:
        claim_or_participation: a Calibration or a Certificate, a Mechanism, or a participation.
        dataset_size: number of examples, >= 1; private under ADD_REMOVE.
        n: number of steps. Required with a participation; otherwise None, or the number of steps of the claim
            or mechanism.
        batch_size: as for SequentialSampler; None for a random participation, which determines it.
        drop_last: as for SequentialSampler; False for a random participation.
        user_ids: the user of each example, for a participation that keeps the examples of a user together
            (CyclicPoisson with `max_examples_per_user`); None for all others.
        declared_size: as for SequentialSampler, a public number; None takes that of the claim. Under
            ADD_REMOVE, it is required for EveryStep and for `drop_last`.
        rng: None generates the batches by a cipher with a key from the operating system, which private
            training requires. "secure" requests this explicitly, and "philox" requests the statistical
            generator Philox with such a key. A numpy Generator or a seed also selects Philox. Unused if
            nothing is sampled.

    Raises:
        CertificateError: if n is not that of the claim.
        MissingDependencyError: for a cipher without the package `cryptography`.
        InvalidParameterError: if an argument is invalid, or if the participation does not accept it.

    Examples:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(
        ...     dm.LambdaCGD(390, 0.9), 8.0, 1e-5, participation=dm.MinSep(39, 10), expected_batch_size=128
        ... )
        >>> sampler_for(cal, 5000).expected_batch_size
        128.0
    """
    participation, steps = _resolved(claim_or_participation, n)
    claim = claim_or_participation if isinstance(claim_or_participation, Claim) else None
    mechanism = claim.mechanism if claim is not None else claim_or_participation
    hidden = isinstance(mechanism, Mechanism) and mechanism.hides_size
    if declared_size is None and hidden and claim is not None:
        declared_size = claim.dataset_size
    if user_ids is not None and not participation.users_together:
        raise InvalidParameterError(
            "user_ids", type(user_ids).__name__, f"None: batches of {participation!r} do not depend on them"
        )
    sampler = scheme_of(participation).sampler(
        participation,
        dataset_size,
        steps,
        batch_size=batch_size,
        drop_last=drop_last,
        declared_size=declared_size,
        hides_size=hidden,
        user_ids=user_ids,
        rng=rng,
    )
    if hidden:
        sampler.expected_batch_size = None if claim is None else claim.expected_batch_size
    return sampler


def _resolved(value: object, n: int | None) -> tuple[Participation, int]:
    if isinstance(value, Claim):
        certified = value.strategy.n
        if n is not None and check_steps(n) != certified:
            raise CertificateError(
                f"n is certified as {certified}, got {n}: to stop early, stop iterating",
                claimed=certified,
                recomputed=n,
            )
        return value.participation, certified
    if isinstance(value, Mechanism):
        if n is not None and check_steps(n) != value.steps:
            raise InvalidParameterError(
                "n", n, f"left out, or {value.steps}, which the mechanism says already"
            )
        return value.participation, value.steps
    if isinstance(value, Participation):
        if n is None:
            raise InvalidParameterError("n", None, "the number of steps, in addition to a participation")
        return value, check_steps(n)
    raise InvalidParameterError(
        "claim_or_participation", value, "a Calibration, a Certificate or a participation such as MinSep(390)"
    )


def shard(indices: Any, rank: int, world_size: int) -> IntArray:  # noqa: ANN401 - any sequence of integers
    """Return the part of a batch for one of several processes; the parts form a partition of the batch.

    The sizes of the parts differ by at most one. All processes must sample the same batch, so they need the
    same key. To share the key, load the state of one sampler into the others.

    Args:
        indices: a batch, shape (m,).
        rank: in [0, world_size - 1].
        world_size: number of processes, >= 1.

    Raises:
        InvalidParameterError: if an argument is invalid.
    """
    batch = check_indices(indices)
    processes = check_integer("world_size", world_size, minimum=1)
    return batch[check_integer("rank", rank, minimum=0, maximum=processes - 1) :: processes].copy()


def padded(indices: Any, multiple: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:  # noqa: ANN401 - any sequence of integers
    """Pad a batch with example 0 to the next multiple, and return it with a mask of the real entries.

    Use this for microbatches of a fixed size. Give padding the weight 0 before gradients are summed, so that
    it has no effect. Truncating a batch is a different mechanism; for this, use `TruncatedPoissonSampler`. An
    empty batch remains empty.

    Args:
        indices: a batch, shape (m,).
        multiple: >= 1.

    Returns:
        Indices and mask, both of shape (ceil(m / multiple) * multiple,).

    Raises:
        InvalidParameterError: if an argument is invalid.
    """
    batch = check_indices(indices)
    missing = -batch.size % check_integer("multiple", multiple, minimum=1)
    mask = np.ones(batch.size + missing, dtype=np.bool_)
    mask[batch.size :] = False
    return np.concatenate((batch, np.zeros(missing, dtype=np.int64))), mask


def check_indices(value: Any) -> IntArray:  # noqa: ANN401 - this check establishes the type
    """Return a one-dimensional int64 array; other shapes, floats and bools are refused."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise InvalidParameterError("indices", type(value).__name__, _INTEGERS) from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        # The indices themselves are not shown: they reveal who took part.
        raise InvalidParameterError("indices", f"{array.dtype} of shape {array.shape}", _INTEGERS)
    return array.astype(np.int64)
