"""Certificates written by hand for the checker's tests, without dpmech."""

import hashlib
import json


def plain(value):
    if isinstance(value, float):
        return {"decimal": value, "hex": value.hex()}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list) and value:
        return {"decimal": value, "hex": hexed(value)}
    return value


def hexed(value):
    return [hexed(item) for item in value] if isinstance(value, list) else value.hex()


def with_checksum(document):
    content = {key: value for key, value in document.items() if key != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return content | {"checksum": hashlib.sha256(text.encode()).hexdigest()}


def steps_of(strategy):
    if "strategy" in strategy:
        return steps_of(strategy["strategy"])
    return strategy.get("n") or len(strategy.get("entries") or strategy.get("matrix"))


_USERS = {"max_examples_per_user": None}
_UNLESS_SAID = {
    "MinSep": _USERS,
    "Poisson": _USERS | {"truncated_batch_size": None, "dataset_size": None},
    "CyclicPoisson": _USERS,
    "BallsInBins": _USERS | {"fresh": False},
}


def filled(participation):
    """A participation with every entry of its type: a file has them, null or false where nothing is said."""
    return _UNLESS_SAID.get(participation["type"], {}) | participation


def certificate(strategy, participation, eps, delta, sigma, /, **changes):
    """A certificate's document, its participation filled; `changes` replace entries of the claim."""
    participation = filled(participation)
    claim = {
        "eps": eps,
        "delta": delta,
        "adjacency": "add_remove",
        "sigma": sigma,
        "unit": "example" if participation.get("max_examples_per_user") is None else "user",
        "n": steps_of(strategy),
        "strategy": strategy,
        "strategy_hash": "0" * 64,
        "participation": participation,
        "clip_norm": None,
        "expected_batch_size": None,
        "coefficients": {},
    }
    return with_checksum(
        {
            "guarantee": "deterministic upper bound",
            "schema_version": 1,
            "claim": plain(claim | changes),
            "evidence": {},
            "trainer": {},
            "fingerprint": "0" * 64,
        }
    )


def write(path, document):
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
