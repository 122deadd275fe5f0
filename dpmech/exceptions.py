"""Error types raised by dpmech.

Every error carries the objects it refers to. Its message names the argument, the given value and what would
be accepted.
"""

import math
from typing import Any


class DpmechError(Exception):
    """Base class of every error that dpmech raises on purpose; it can be pickled without loss.

    Example:
        >>> import dpmech as dm
        >>> try:
        ...     dm.calibrate_sigma(dm.Identity(10), -1.0, 1e-5)
        ... except dm.DpmechError as error:
        ...     print(error)
        eps must be a finite number in (0, inf), got -1.0
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, dict(vars(self)))


def _again(kind: type[DpmechError], args: tuple[Any, ...], state: dict[str, Any]) -> DpmechError:
    """Rebuild an error whose class takes other arguments than the message."""
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(state)
    return error


def shown_value(value: object, most: int = 120) -> str:
    """The repr of any object, cut to `most` characters; also for objects nested too deeply for repr."""
    try:
        text = repr(value)
        if "\n" in text and hasattr(value, "shape"):  # a matrix of NumPy or torch, whose rows are lines
            text = f"an array of shape {tuple(value.shape)}"
    except (MemoryError, RecursionError, ValueError):  # ValueError: integers with thousands of digits
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= most else text[: most - 3] + "..."


class InvalidParameterError(DpmechError, ValueError):
    """An argument is outside its range or has the wrong type.

    Attributes:
        name: the argument.
        value: the given value.
        accepted: what would be accepted, in words.
        hint: how to fix the error, starting with a punctuation mark; often empty.

    Example:
        >>> import dpmech as dm
        >>> try:
        ...     dm.Poisson(1.5)
        ... except dm.InvalidParameterError as error:
        ...     print(error)
        sampling_prob must be a finite number in (0, 1], got 1.5
    """

    def __init__(self, name: str, value: object, accepted: str, hint: str = "") -> None:
        self.name = name
        self.value = value
        self.accepted = accepted
        self.hint = hint
        super().__init__(f"{name} must be {accepted}, got {shown_value(value)}{hint}")


class UnsupportedCombinationError(DpmechError, NotImplementedError):
    """No theorem covers this combination of strategy, participation, adjacency and method.

    Attributes:
        reason: which hypothesis fails.
        supported: what is supported instead.

    Example:
        >>> import dpmech as dm
        >>> try:
        ...     dm.calibrate_sigma(dm.LambdaCGD(10, 0.5), 2.0, 1e-5, participation=dm.Poisson(0.1))
        ... except dm.UnsupportedCombinationError as error:
        ...     print(error.supported)
        Identity; for correlated noise CyclicPoisson with a banded strategy, or BallsInBins
    """

    def __init__(self, reason: str, *, supported: str) -> None:
        self.reason = reason
        self.supported = supported
        super().__init__(f"{reason}; supported: {supported}")


class UnattainableBudgetError(DpmechError, ValueError):
    """No finite sigma meets the budget, every sigma does, or no finite eps holds at this delta.

    Attributes:
        eps: the requested eps; infinite if eps was to be computed.
        delta: the requested delta.
        reason: why not.

    Example:
        >>> import dpmech as dm
        >>> try:
        ...     dm.calibrate_sigma(dm.Identity(1), 1.0, 1e-5, participation=dm.Poisson(1e-6))
        ... except dm.UnattainableBudgetError:
        ...     print("every sigma will do")
        every sigma will do
    """

    def __init__(self, eps: float, delta: float, reason: str) -> None:
        self.eps = eps
        self.delta = delta
        self.reason = reason
        what = "no finite eps at" if math.isinf(eps) else f"no sigma found for eps={eps!r},"
        super().__init__(f"{what} delta={delta!r}: {reason}")


class NumericalError(DpmechError, ArithmeticError):
    """A tolerance was missed, a NaN appeared or monotonicity was lost, so there is no result to return.

    Example:
        >>> import dpmech as dm
        >>> issubclass(dm.NumericalError, ArithmeticError)
        True
    """


class ContradictionError(NumericalError):
    """Two proved bounds exclude each other, so one of them is wrong: a fault of dpmech or of the machine.

    Unlike after other numerical errors, no other accountant is tried. Please report this error.
    """


class CertificateError(DpmechError, ValueError):
    """A certificate could not be read or is not valid.

    Attributes:
        claimed: the value that the certificate states.
        recomputed: the value recomputed from its other entries.

    Example:
        >>> import dpmech as dm
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "certificate.json"
        >>> cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> saved = cal.certificate().save(path)
        >>> edited = path.write_text(path.read_text().replace(repr(cal.sigma), "1.0"))
        >>> try:
        ...     dm.Certificate.load(path)
        ... except dm.exceptions.CertificateError:
        ...     print("refused")
        refused
    """

    def __init__(self, message: str, *, claimed: object = None, recomputed: object = None) -> None:
        self.claimed = claimed
        self.recomputed = recomputed
        super().__init__(message)


class WorkLimitError(DpmechError, RuntimeError):
    """A check would exceed its work limit; the claim was neither confirmed nor refuted.

    Attributes:
        what: the work, in words.
        estimate: upper estimate of the work: (seconds on one core, bytes of memory).
        allowed: the limit, in the same units.

    Example:
        >>> import dpmech as dm
        >>> issubclass(dm.exceptions.WorkLimitError, dm.DpmechError)
        True
    """

    def __init__(self, what: str, estimate: tuple[float, float], allowed: tuple[float, float]) -> None:
        self.what = what
        self.estimate = estimate
        self.allowed = allowed
        named = []
        if not estimate[0] <= allowed[0]:
            named.append("max_seconds (--max-seconds)")
        if not estimate[1] <= allowed[1]:
            named.append("max_memory (--max-memory)")
        super().__init__(
            f"{what} takes the work to about {estimate[0]:.3g} s and {estimate[1] / 1e9:.3g} GB, above the "
            f"allowed {allowed[0]:g} s and {allowed[1] / 1e9:g} GB; raise {' and '.join(named)} to go on"
        )


class HorizonError(DpmechError, RuntimeError):
    """A step past the last one was requested.

    Attributes:
        step: the requested step, counted from 0.
        n: the number of calibrated steps.

    Example:
        >>> import dpmech as dm
        >>> str(dm.exceptions.HorizonError(step=50, n=50))
        'step must be in [0, 49], got 50: the noise is calibrated for n=50 steps; ...'
    """

    def __init__(self, step: int, n: int) -> None:
        self.step = step
        self.n = n
        super().__init__(
            f"step must be in [0, {n - 1}], got {step}: the noise is calibrated for n={n} steps; train "
            "`while optimizer.steps_left`, or calibrate for more steps before the run"
        )


class MissingDependencyError(DpmechError, ImportError):
    """An optional dependency is not installed.

    Attributes:
        package: the missing package.
        extra: the dpmech extra that installs it.

    Example:
        >>> import dpmech as dm
        >>> dm.exceptions.MissingDependencyError("torch", "torch").extra
        'torch'
    """

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(
            f"{package} is needed here: pip install {package}, or the extra {extra!r}, from a checkout: "
            f"pip install '.[{extra}]'"
        )


class WorkerError(DpmechError, RuntimeError):
    """The processes or the cluster that ran the work failed; nothing was written.

    Attributes:
        reason: what happened.
        executor: where the work was sent.

    Example:
        >>> import dpmech as dm
        >>> issubclass(dm.exceptions.WorkerError, dm.DpmechError)
        True
    """

    def __init__(self, reason: str, executor: object) -> None:
        self.reason = reason
        self.executor = executor
        super().__init__(f"{reason}, at {executor!r}; start the call again, on other workers or without any")
