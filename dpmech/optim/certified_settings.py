"""Settings that a calibration or a certificate fixes for training; others are refused."""

import math

from dpmech.certificates import AdaptiveClip, Claim, check_unedited
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.guards import check_real
from dpmech.optim.clipping import Clipping, FlatClipping


def check_claim(value: object) -> Claim:
    """Return `value` if it is a Calibration or a Certificate, as computed or read from a file.

    Raises:
        InvalidParameterError: for other types.
        CertificateError: if it was edited (its checksum differs) or assembled manually.
    """
    if not isinstance(value, Claim):
        raise InvalidParameterError(
            "calibration",
            value,
            "a Calibration (from dm.calibrate_sigma or the calibrate of a TrainingPlan), or a Certificate "
            "(from dm.Certificate.load)",
        )
    checked: Claim = check_unedited(value)
    return checked


def check_certified(claim: Claim, name: str, used: float) -> None:
    """Raise CertificateError if the certificate fixes another `clip_norm` or `expected_batch_size`."""
    certified = _certified(claim, name)
    # Joint norms of blocks are computed, so the last bits may differ.
    if certified is not None and not math.isclose(certified, used, rel_tol=1e-12):
        raise CertificateError(
            f"{name} is certified as {certified!r}, got {used!r}", claimed=certified, recomputed=used
        )


def check_reaches(claim: Claim, name: str, used: float) -> None:
    """Raise CertificateError if the certificate fixes a larger `clip_norm` or `expected_batch_size`."""
    certified = _certified(claim, name)
    if certified is not None and used < certified * (1.0 - 1e-12):
        raise CertificateError(
            f"{name} is certified as {certified!r}, got {used!r}, which is less: pass the Clipping in use if "
            "blocks have separate noise",
            claimed=certified,
            recomputed=used,
        )


def resolved_clipping(claim: Claim, clip_norm: float | None, clipping: Clipping | None) -> Clipping:
    """The clipping determined by arguments and certificate.

    Raises:
        InvalidParameterError: if `clip_norm` is not the joint norm of `clipping`.
        CertificateError: if the certificate fixes another clip norm.
    """
    if clipping is None:
        options = (clip_norm, _certified(claim, "clip_norm"), 1.0)
        clipping = FlatClipping(next(value for value in options if value is not None))
    elif not isinstance(clipping, Clipping):
        raise InvalidParameterError(
            "clipping", clipping, "None or a Clipping such as PerLayerClipping([1.0])"
        )
    elif clip_norm is not None and not math.isclose(
        check_real("clip_norm", clip_norm), clipping.joint_norm, rel_tol=1e-12
    ):
        raise InvalidParameterError(
            "clip_norm", clip_norm, f"None or the clipping's, {clipping.joint_norm!r}"
        )
    check_certified(claim, "clip_norm", clipping.joint_norm)
    return clipping


def resolved_batch_size(claim: Claim, expected_batch_size: float | None) -> float:
    """The public denominator determined by arguments and certificate.

    Raises:
        InvalidParameterError: if there is none.
        CertificateError: if the certificate fixes another one.
    """
    value = _certified(claim, "expected_batch_size") if expected_batch_size is None else expected_batch_size
    size = check_real("expected_batch_size", value, minimum=0.0, open_minimum=True)
    check_certified(claim, "expected_batch_size", size)
    return size


def resolved_rule(
    claim: Claim, clip_norm: float | AdaptiveClip | None, clipping: Clipping | None
) -> AdaptiveClip | None:
    """The rule by which the clip norm changes; None if it is fixed.

    Raises:
        InvalidParameterError: if both a rule and a Clipping of fixed norms are given.
        CertificateError: if the certificate fixes another rule, or a norm.
    """
    rule = claim.clip_norm if clip_norm is None and clipping is None else clip_norm
    if not isinstance(rule, AdaptiveClip):
        return None
    if clipping is not None:
        raise InvalidParameterError(
            "clipping", clipping, "None with an AdaptiveClip, which follows the norm of the whole gradient"
        )
    check_rule(claim, rule)
    return rule


def check_rule(claim: Claim, rule: AdaptiveClip) -> None:
    """Raise CertificateError if the certificate fixes a clip norm, or another rule."""
    if claim.clip_norm is not None and claim.clip_norm != rule:
        raise CertificateError(
            f"clip_norm is certified as {claim.clip_norm!r}, got {rule!r}",
            claimed=claim.clip_norm,
            recomputed=rule,
        )


def _certified(claim: Claim, name: str) -> float | None:
    value = {"clip_norm": claim.clip_norm, "expected_batch_size": claim.expected_batch_size}[name]
    if isinstance(value, AdaptiveClip):
        raise CertificateError(
            f"the certificate has a clip norm that follows a noised count, {value!r}; got a fixed one",
            claimed=value,
        )
    return value
