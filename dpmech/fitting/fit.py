"""What a fit returns, and its storage."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from dpmech.calibration import Calibration
from dpmech.exceptions import InvalidParameterError
from dpmech.files import parse_json, read_bytes, write_bytes
from dpmech.mechanism import Participation, Strategy
from dpmech.numerics import up

__all__ = ["Fit", "FitCache"]

_FORMAT = 1
# Bytes: of a dense matrix of 3000 steps.
_LARGEST = 200_000_000


@dataclasses.dataclass(frozen=True)
class Fit:
    """The best strategy found, and what it was chosen from.

    Attributes:
        strategy: the winner.
        participation: that of the winner; where several were given, the best.
        objective: "rmse", "max_se" or "last".
        error: the certified error in units of the clip norm: at sigma / sensitivity 1 without a budget, at
            the calibrated sigma with one.
        identity_error: that of independent noise, under the first participation.
        candidates: (description, error) of everything that was judged in the end, the winner included.
        calibration: that of the winner; None without a budget.

    Example:
        >>> import dpmech as dm
        >>> fit = dm.optimize(dm.LambdaCGD, dm.MinSep(10, 5), n=50)
        >>> f"{fit.strategy.lam:.2f}", fit.error < fit.identity_error
        ('0.76', True)
    """

    strategy: Strategy
    participation: Participation
    objective: str
    error: float
    identity_error: float
    candidates: tuple[tuple[str, float], ...]
    calibration: Calibration | None = None

    def __str__(self) -> str:
        errors = f"{up(self.error)}, of independent noise {up(self.identity_error)}"
        unit = "at sigma / sensitivity 1" if self.calibration is None else "at the calibrated sigma"
        fitted = [repr(self.strategy), repr(self.participation), f"{self.objective} {errors}: {unit}"]
        return "\n".join(fitted if self.calibration is None else [*fitted, str(self.calibration)])


class FitCache:
    """Fitted coefficients on disk, one file a request.

    A file is written whole under a temporary name and then renamed, so that any number of processes may
    share the folder; what they write for one request is the same kind of thing, and the last one stays.
    Coefficients are stored, never the recipe; errors are computed anew on reading.

    Args:
        folder: created if absent.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def key(self, request: dict[str, Any]) -> str:
        """SHA-256 (hex) of a request of plain data."""
        text = json.dumps({"format": _FORMAT} | request, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def load(self, key: str) -> tuple[Strategy, Participation] | None:
        """What is stored under a key; None where there is nothing.

        Raises:
            InvalidParameterError: if the file is not one of ours, or of another request.
        """
        path = self.folder / f"{key}.json"
        if not path.exists():
            return None
        try:
            data = parse_json(read_bytes("cache file", path, largest=_LARGEST))
            if data["format"] != _FORMAT or data["key"] != key:
                raise InvalidParameterError("cache file", str(path), f"one of format {_FORMAT} for its key")
            return Strategy.from_dict(data["strategy"]), Participation.from_dict(data["participation"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidParameterError("cache file", str(path), f"one written by dpmech ({error})") from None

    def store(self, key: str, strategy: Strategy, participation: Participation) -> None:
        """Write or replace an entry."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidParameterError(
                "cache", str(self.folder), f"a folder that may be written to ({error.strerror})"
            ) from error
        data = {
            "format": _FORMAT,
            "key": key,
            "strategy": strategy.to_dict(),
            "participation": participation.to_dict(),
        }
        write_bytes("cache file", self.folder / f"{key}.json", json.dumps(data).encode())
