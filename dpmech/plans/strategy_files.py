"""Strategies in files: what `dpmech optimize` found, for `dpmech calibrate` and for Python."""

import os

from dpmech.exceptions import InvalidParameterError
from dpmech.files import read_bytes, write_bytes
from dpmech.mechanism import Strategy

__all__ = ["read_strategy", "write_strategy"]

# Bytes: of a dense matrix of 3000 steps, which is larger than any certificate of one.
_LARGEST = 200_000_000


def read_strategy(path: str | os.PathLike[str]) -> Strategy:
    """A strategy from a file of JSON, as `Strategy.to_json` writes it.

    Raises:
        InvalidParameterError: if the file cannot be read, or holds no strategy.
    """
    content = read_bytes("strategy_file", path, largest=_LARGEST)
    try:
        return Strategy.from_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidParameterError("strategy_file", str(path), "a readable file (not text)") from error
    except InvalidParameterError as error:
        raise InvalidParameterError(
            "strategy_file",
            str(path),
            "a strategy in JSON, as `dpmech optimize --out-strategy` and Strategy.to_json write it",
            "" if error.name == "strategy" else f" ({error})",
        ) from error


def write_strategy(path: str | os.PathLike[str], strategy: Strategy) -> None:
    """Write a strategy to a file, whole or not at all, as `read_strategy` reads it.

    Raises:
        InvalidParameterError: if the file cannot be written.
    """
    write_bytes("out_strategy", path, f"{strategy.to_json()}\n".encode())
