"""Saved states of a noise stream: what they hold, and the refusal of any other."""

from typing import Any

from torch import Tensor

from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.guards import check_integer
from dpmech.optim.processes import Key

__all__ = ["FORMAT", "PHILOX", "checked_state", "generator_of"]

PHILOX = "philox"

# What to do where a part of what was described differs.
_REMEDIES = {
    "claim": "its strategy, participation, budget or sigma differs. A calibration that draws samples ends at "
    "another sigma each time: save its certificate before the first step, "
    "`calibration.certificate().save(path)`, and hand in `dm.Certificate.load(path)` where the run goes on",
}

FORMAT = 2  # 1 formed rows in float32


def generator_of(state: object) -> object:
    """The generator that a saved state names; what it is worth is checked by `checked_state`."""
    return state.get("generator", PHILOX) if isinstance(state, dict) else None


def checked_state(
    state: object, described: dict[str, Any], like: list[list[Tensor]], n: int
) -> tuple[int, Key, list[list[Tensor]]]:
    """Step, key and copies of the vectors of a saved state.

    Args:
        state: what `NoiseStream.state_dict` made.
        described: what it must have in common with the stream that loads it.
        like: the vectors of that stream.
        n: the number of its steps.

    Raises:
        CertificateError: if it is of another run, or of an earlier format.
        InvalidParameterError: if it is malformed.
    """
    expected = {"format", *described, "step", "key", "seeded", "fingerprints", "state"}
    named = {"generator"}  # by states of other generators than Philox
    if not isinstance(state, dict) or set(state) - named != expected - named:
        raise InvalidParameterError("state", type(state).__name__, f"a dict with keys {sorted(expected)}")
    if state["format"] != FORMAT:
        raise CertificateError(
            f"the state has format {state['format']!r}, here it is {FORMAT}: its rows were formed in another "
            "precision, so that steps taken again would not repeat what they released; start the run anew",
            claimed=state["format"],
            recomputed=FORMAT,
        )
    used, mine = generator_of(state), described.get("generator", PHILOX)
    if used != mine:
        raise CertificateError(
            f"the state has another generator than this stream: noise from {used!r}, here from {mine!r}; a "
            "stream that is made without `generator` goes on with that of the state",
            claimed=used,
            recomputed=mine,
        )
    for name, value in described.items():
        if state[name] != value:
            remedy = f": {_REMEDIES[name]}" if name in _REMEDIES else ""
            raise CertificateError(
                f"the state has another {name} than this stream{remedy}",
                claimed=state[name],
                recomputed=value,
            )
    step = check_integer("state['step']", state["step"], minimum=0, maximum=n)
    return step, _check_key(state["key"]), _check_vectors(state["state"], like)


def _check_key(value: object) -> Key:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidParameterError("state['key']", type(value).__name__, "two integers")
    first, second = (check_integer("state['key']", word, minimum=0, maximum=2**64 - 1) for word in value)
    return first, second


def _check_vectors(given: object, like: list[list[Tensor]]) -> list[list[Tensor]]:
    """Copies of the state vectors on the right devices."""
    if not isinstance(given, list) or [len(row) for row in given] != [len(row) for row in like]:
        raise InvalidParameterError("state['state']", type(given).__name__, "the vectors of every parameter")
    copies = []
    for given_row, row in zip(given, like, strict=True):
        for new, old in zip(given_row, row, strict=True):
            if not isinstance(new, Tensor) or (new.shape, new.dtype) != (old.shape, old.dtype):
                raise InvalidParameterError(
                    "a vector of the state", new, f"of shape {tuple(old.shape)} in {old.dtype}"
                )
        copies.append([new.to(old.device, copy=True) for new, old in zip(given_row, row, strict=True)])
    return copies
