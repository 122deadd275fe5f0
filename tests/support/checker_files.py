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


def certificate(strategy, participation, eps, delta, sigma, /, **changes):
    """A certificate's document; `changes` replace entries of the claim."""
    claim = {
        "eps": eps,
        "delta": delta,
        "adjacency": "add_remove",
        "sigma": sigma,
        "unit": "user" if participation["type"].startswith("User") else "example",
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
