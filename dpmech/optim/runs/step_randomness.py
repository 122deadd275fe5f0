"""StepRandomness: random numbers that follow from the step alone, whatever else a trainer does with them."""

import hashlib
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dpmech.exceptions import InvalidParameterError

__all__ = ["StepRandomness"]

_BITS = 64


class StepRandomness:
    """Seeds Python's, numpy's and torch's generators for a step, and puts them back.

    A step that is taken again after a failure adds the same noise, so its sum must be the same too. What
    draws from the global generators (dropout, collate functions that mask at random) would differ if
    an evaluation, a callback or a logger drew from them in between; under a trainer nobody can see to that.

    The noise and the lots have keys of their own, which none of this touches.

    Args:
        seed: None draws one.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = secrets.randbits(_BITS) if seed is None else seed

    @contextmanager
    def at(self, step: int, use: str) -> Iterator[None]:
        """Draw what follows from the step and a word that says what for."""
        digest = hashlib.blake2b(f"{self._seed} {step} {use}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little") >> 1
        python = random.getstate()
        numpy = np.random.get_state()  # noqa: NPY002 - what other people's code draws from
        try:
            with torch.random.fork_rng():
                random.seed(number)
                np.random.seed(number % (1 << 32))  # noqa: NPY002 - the same
                torch.manual_seed(number)
                yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002 - the same

    def state_dict(self) -> dict[str, Any]:
        """The seed."""
        return {"seed": str(self._seed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the seed of a checkpoint.

        Raises:
            InvalidParameterError: if it is no state of this class.
        """
        try:
            self._seed = int(state["seed"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidParameterError("state", state, "one of StepRandomness") from error
