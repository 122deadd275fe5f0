"""Strategies in files: what `dpmech optimize` found, for `dpmech calibrate` and for Python."""

import os
from pathlib import Path

from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism import Strategy

__all__ = ["read_strategy", "write_strategy"]


def read_strategy(path: str | os.PathLike[str]) -> Strategy:
    """A strategy from a file of JSON, as `Strategy.to_json` writes it.

    Raises:
        InvalidParameterError: if the file cannot be read, or holds no strategy.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InvalidParameterError("strategy_file", str(path), f"a readable file ({reason})") from error
    try:
        return Strategy.from_json(text)
    except InvalidParameterError as error:
        raise InvalidParameterError(
            "strategy_file",
            str(path),
            "a strategy in JSON, as `dpmech optimize --out-strategy` and Strategy.to_json write it",
            "" if error.name == "strategy" else f" ({error})",
        ) from error


def write_strategy(path: str | os.PathLike[str], strategy: Strategy) -> None:
    """Write a strategy to a file, as `dm.Strategy.from_json` and `read_strategy` read it.

    Raises:
        InvalidParameterError: if the file cannot be written.
    """
    try:
        Path(path).write_text(strategy.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidParameterError(
            "out_strategy", str(path), f"a file that can be written ({error.strerror})"
        ) from error
