"""Phi: the variance of the noise in every parameter's private gradient, where optimizers read it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = ["Phis"]


class Phis:
    """Phi of every step and every trained parameter.

    Args:
        trained: the parameters.
        scales: standard deviation of their noise where a row of C^-1 has norm 1, one a parameter.
        row_norms: norms of the rows of C^-1, shape (n,).
    """

    def __init__(
        self, trained: Sequence[Tensor], scales: Sequence[float], row_norms: npt.NDArray[np.float64]
    ) -> None:
        self._trained = trained
        self._scales = scales
        self._row_norms = row_norms

    def at(self, step: int, scale: float = 1.0) -> list[float]:
        """Phi of a step times `scale`, one a trained parameter."""
        return [float((own * self._row_norms[step]) ** 2) * scale for own in self._scales]

    def write(self, groups: list[dict[str, Any]], step: int, scale: float = 1.0) -> None:
        """Put Phi of a step into `group["phi"]`: a float, or a list where parameters differ."""
        own = {id(param): phi for param, phi in zip(self._trained, self.at(step, scale), strict=True)}
        for group in groups:
            values = [own.get(id(param)) for param in group["params"]]
            distinct = {value for value in values if value is not None}
            listed = [0.0 if value is None else value for value in values]
            group["phi"] = distinct.pop() if len(distinct) == 1 else listed
