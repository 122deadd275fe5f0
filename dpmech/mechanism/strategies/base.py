"""The Strategy interface: everything that sensitivities, objectives and noise streams need from C."""

import abc
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from dpmech.exceptions import InvalidParameterError
from dpmech.files import parse_json
from dpmech.guards import check_integer
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.mechanism.strategies.shape import Shape
from dpmech.numerics import UNIT, FloatArray, sum_rounding


class Strategy(abc.ABC):
    r"""A lower-triangular, invertible strategy matrix C of shape (n, n).

    The mechanism privatises C G + sigma Z; step t adds row t of sigma C^-1 Z as noise. Strategies are
    immutable, and equal if their fingerprints are equal.

    All properties of a strategy are available through these members, so code outside this package does not
    depend on its class.

    Example:
        >>> import dpmech as dm
        >>> strategy = dm.LambdaCGD(4, 0.5)
        >>> isinstance(strategy, dm.Strategy), strategy.n, strategy.inverse_bands
        (True, 4, 2)
    """

    n: int
    _registry: ClassVar[dict[str, type["Strategy"]]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        Strategy._registry[cls.__name__] = cls

    # ---- algebra

    @abc.abstractmethod
    def to_dense(self) -> FloatArray:
        """C as a matrix of shape (n, n). The only member that forms one (except for Dense)."""

    @abc.abstractmethod
    def matmul(self, x: FloatArray) -> FloatArray:
        """C @ x for x of shape (n,) or (n, d)."""

    @abc.abstractmethod
    def solve(self, z: FloatArray) -> FloatArray:
        """C^-1 @ z for z of shape (n,) or (n, d): the noise that correlates z."""

    @abc.abstractmethod
    def column_norms(self) -> FloatArray:
        """Euclidean norms of the columns of C, shape (n,)."""

    @abc.abstractmethod
    def noising_row_norms(self) -> FloatArray:
        """Euclidean norms of the rows of C^-1, shape (n,): the noise scale of each step."""

    @abc.abstractmethod
    def gram_diagonal(self, offset: int) -> FloatArray:
        """The entries (C^T C)[j, j + offset] for 0 <= j < n - offset, shape (n - offset,)."""

    @abc.abstractmethod
    def gram_rows(self) -> Iterator[tuple[int, FloatArray]]:
        """Every row (i, (C^T C)[i, :]) once, in any order, in O(n) memory (except for Dense)."""

    @abc.abstractmethod
    def prefix(self, steps: int) -> "Strategy":
        """The leading block of C, shape (steps, steps): the strategy of a run that stops after `steps`.

        Args:
            steps: in [1, n].
        """

    # ---- structure

    @property
    @abc.abstractmethod
    def factored(self) -> ScaledToeplitz | None:
        """C as a Toeplitz matrix times a diagonal one, or None if it has no such form."""

    @property
    @abc.abstractmethod
    def nonnegative(self) -> bool:
        """Whether every entry of C is >= 0, checked entry by entry."""

    @property
    @abc.abstractmethod
    def bands(self) -> int | None:
        """Number p with C[i, j] = 0 for all i - j >= p (1 for a diagonal C); None if C is not banded."""

    @property
    @abc.abstractmethod
    def inverse_bands(self) -> int | None:
        """Number of bands of C^-1, defined likewise."""

    @property
    def shape(self) -> Shape:
        """Sizes that determine the cost of its vectors; those of an unstructured matrix unless overridden."""
        return Shape(self.n, dense=True)

    @property
    def error(self) -> float:
        """Bound on the error of each float64 column compared with the exact strategy, relative to its norm.

        0 if the entries are given; a bound if they are derived from other numbers.
        """
        return 0.0 if self.factored is None else self.factored.error

    @property
    def gram_rounding(self) -> float:
        """Bound on the rounding error of an entry of C^T C, relative to the norms of its two columns.

        For C >= 0, it is relative to the entry itself. It also bounds the error of `column_norms`.
        """
        return sum_rounding(self.n) + 4.0 * UNIT

    @property
    def toeplitz_coefs(self) -> FloatArray | None:
        """First column of C, shape (n,), if C is Toeplitz; else None."""
        factors = self.factored
        return factors.coefs if factors is not None and factors.scale is None else None

    @property
    def inverse_coefs(self) -> FloatArray | None:
        """First column of C^-1, shape (n,), if C is Toeplitz; else None."""
        factors = self.factored
        return factors.inverse_coefs if factors is not None and factors.scale is None else None

    # ---- identity and storage

    def to_dict(self) -> dict[str, Any]:
        """The strategy as plain data: its type and its fields, arrays as lists."""
        data: dict[str, Any] = {"type": type(self).__name__}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every final subclass is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Strategy):
                data[field.name] = value.to_dict()
            else:
                data[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
        return data

    def to_json(self) -> str:
        """The strategy as JSON text; floats keep every bit."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(data: object) -> "Strategy":
        """Rebuild a strategy from `to_dict`.

        Raises:
            InvalidParameterError: if the type is unknown, a field is missing or unknown, or a value is
                invalid.
        """
        known = {name: kind for name, kind in Strategy._registry.items() if dataclasses.is_dataclass(kind)}
        if not isinstance(data, dict) or str(data.get("type")) not in known:
            raise InvalidParameterError(
                "strategy", data, "a mapping with type in " + ", ".join(sorted(known))
            )
        kind = known[str(data["type"])]
        fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # filtered above
        if set(data) - {"type"} != set(fields):
            raise InvalidParameterError(
                "strategy", data, f"a {data['type']} with exactly the fields {fields}"
            )
        # In field order: constructors take their arguments in this order, under different names.
        values = (data[name] for name in fields)
        return kind(*(Strategy.from_dict(value) if isinstance(value, dict) else value for value in values))

    @staticmethod
    def from_json(text: str) -> "Strategy":
        """Rebuild a strategy from `to_json`."""
        try:
            data = parse_json(text)
        except ValueError as error:
            raise InvalidParameterError("strategy", text, "JSON written by to_json", f" ({error})") from None
        return Strategy.from_dict(data)

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the type and the exact fields: the identity of a strategy."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Strategy):
            return NotImplemented
        return self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def __repr__(self) -> str:
        parts = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # as above
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                head = ", ".join(f"{x:.6g}" for x in value.ravel()[:4])
                value = f"<{'x'.join(map(str, value.shape))}: {head}{', ...' if value.size > 4 else ''}>"
            parts.append(f"{field.name}={value}")
        return f"{type(self).__name__}({', '.join(parts)})"


def check_steps(steps: int, n: int) -> int:
    """Return `steps` if it is an integer in [1, n], else raise InvalidParameterError."""
    return check_integer("steps", steps, minimum=1, maximum=n)


def check_strategy(value: object) -> Strategy:
    """Return `value` if it is a Strategy, else raise InvalidParameterError."""
    if not isinstance(value, Strategy):
        raise InvalidParameterError("strategy", value, "a Strategy such as dm.Identity(n)")
    return value
