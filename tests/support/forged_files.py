"""Certificates that claim too much work, forged well: every hash and the checksum computed anew."""

import dataclasses
import json

import dpmech as dm
from dpmech.certificates.document import checksum_of_document, to_plain
from dpmech.mechanism.strategies.base import Strategy

BASE = dm.calibrate_sigma(dm.LambdaCGD(24, 0.5), 2.0, 1e-5, participation=dm.MinSep(12, 2)).certificate(
    1.0, 8
)


def document_of(certificate):
    """What a forger would write: the errors and coefficients are those of another certificate."""
    stated, derived = certificate._stated(), BASE._derived()
    return to_plain(stated | {name: stated[name] | derived[name] for name in derived})


def text_with_checksum(document):
    return json.dumps(document | {"checksum": checksum_of_document(document)}, separators=(",", ":"))


def changed(claim, **entries):
    """The claim with other entries, those of its mechanism among them."""
    own = {name: entries.pop(name) for name in ("strategy", "participation", "adjacency") if name in entries}
    return dataclasses.replace(claim, mechanism=dataclasses.replace(claim.mechanism, **own), **entries)


def claimed(strategy, participation=None, method=None):
    """The text of a certificate with this strategy, participation and accountant."""
    changes = {"strategy": strategy}
    if participation is not None:
        changes["participation"] = participation
    if method is not None:
        changes["evidence"] = dataclasses.replace(BASE.evidence, accountant=method)
        changes["achieved"] = dataclasses.replace(BASE.achieved, guarantee=guarantee_of(method))
    return text_with_checksum(document_of(changed(BASE, **changes)))


def guarantee_of(method):
    """The label that an accountant of this method gives."""
    if method.error == 0.0:
        return dm.Guarantee(dm.Kind.BOUND)
    kind = dm.Kind.ESTIMATE if isinstance(method, dm.methods.Importance) else dm.Kind.PROBABLE
    return dm.Guarantee(kind, method.error)


def consistent(strategy, participation, method, kind):
    """The same with the true sensitivity and the label of this accountant: only its sigma may be false."""
    by, eps = dm.numerics.Provenance("claimed"), BASE.budget.eps
    lower = eps if kind is dm.Kind.EXACT else 0.0
    return text_with_checksum(
        document_of(
            changed(
                BASE,
                strategy=strategy,
                participation=participation,
                sensitivity=dm.sensitivity(strategy, participation),
                evidence=dataclasses.replace(BASE.evidence, accountant=method),
                achieved=dm.Bounds(lower, eps, dm.Guarantee(kind, method.error), by),
            )
        )
    )


def edited(*path, value):
    """The text of BASE with one entry replaced."""
    document = json.loads(BASE.to_json())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return text_with_checksum(document)


def number(value):
    return {"decimal": value, "hex": float(value).hex()}


def numbers(values):
    return {"decimal": values, "hex": [value.hex() for value in values]}


def nested(depth):
    strategy: Strategy = dm.LambdaCGD(24, 0.5)
    for _ in range(depth):
        strategy = dm.ColumnNormalized(strategy)
    return strategy


DECAYS = [0.5 + 0.012 * j for j in range(40)]
SCALES = [1e-3] * 40
BINS = dm.BallsInBins(8)

# Well formed, and far too costly: refused by the estimate of the fields alone.
TOO_DEAR = {
    "a BLT of 40 decays over 1e7 steps": lambda: claimed(dm.BLT(10**7, DECAYS, SCALES)),
    "a BLT of 40 decays over 1e8 steps": lambda: claimed(dm.BLT(10**8, DECAYS, SCALES)),
    "a BLT of 9000 decays": lambda: claimed(dm.BLT(10**6, [0.9] * 9000, [1e-5] * 9000)),
    "1e8 independent steps": lambda: claimed(dm.Identity(10**8)),
    "1e8 steps of a banded inverse": lambda: claimed(dm.BandedInverse(10**8, [1.0, -0.5, 0.1])),
    "1e8 steps of a square root": lambda: claimed(dm.InverseSquareRoot(10**8, 10**8)),
    "normalised columns without bands": lambda: claimed(dm.ColumnNormalized(dm.SquareRoot(10**6))),
}


def deep():
    document = json.loads(BASE.to_json())
    outer = {"type": "ColumnNormalized"} | {"strategy": document["claim"]["strategy"]}
    for _ in range(400):
        outer = {"type": "ColumnNormalized", "strategy": outer}
    document["claim"]["strategy"] = outer
    return text_with_checksum(document)


# Not even well formed: refused before a claim is built, or because the entries contradict each other.
CONTRADICTORY = {
    "1e12 steps": lambda: edited("claim", "n", value=10**12),
    "10^400 steps": lambda: edited("claim", "n", value=10**400),
    "10^400 as a strategy's steps": lambda: edited("claim", "strategy", "n", value=10**400),
    "10^4000 bins": lambda: edited(
        "claim",
        "participation",
        value={"type": "BallsInBins", "bins": 10**4000, "fresh": False, "max_examples_per_user": None},
    ),
    "10^400 as sigma": lambda: edited("claim", "sigma", value={"decimal": 10**400, "hex": "0x1p+0"}),
    "an importance sample without end": lambda: edited(
        "evidence",
        "accountant",
        value={"type": "Importance", "rel_error": number(1e-9), "confidence": number(0.9)},
    ),
    "beta 0": lambda: edited("evidence", "accountant", value={"type": "Certified", "beta": number(0.0)}),
    "nested four hundred times": deep,
}

# As many entries as ten megabytes hold, or a share of it.
LARGE = {
    "coefficients": lambda share: edited(
        "claim", "coefficients", "leading", value=numbers([0.5] * max(17_000, int(350_000 * share)))
    ),
    "versions": lambda share: edited("evidence", "versions", value=many(share)),
    "requirements": lambda share: edited("trainer", value=many(share)),
    "empty objects in a strategy": lambda share: edited(
        "claim", "strategy", value={"type": "Dense", "matrix": [{}] * int(3_300_000 * share)}
    ),
    "a matrix": lambda share: edited(
        "claim", "strategy", value={"type": "Dense", "matrix": [[1] * 2400] * int(2000 * share)}
    ),
    "a vector of numbers": lambda share: edited(
        "claim", "strategy", value={"type": "Diagonal", "entries": numbers([0.5] * int(350_000 * share))}
    ),
    "a vector of strings": lambda share: edited(
        "claim", "strategy", value={"type": "Diagonal", "entries": ["1"] * int(2_400_000 * share)}
    ),
    "digits that differ": lambda share: edited(
        "claim",
        "strategy",
        value={
            "type": "Diagonal",
            "entries": numbers([1.0] * int(3e5 * share)) | {"decimal": [2] * int(3e5 * share)},
        },
    ),
    "a headline": lambda share: edited("guarantee", value="x" * int(9_900_000 * share)),
    "lists nested without end": lambda share: "[" * int(9_900_000 * share),
    "objects nested without end": lambda share: '{"a":' * int(1_900_000 * share),
    "empty objects": lambda share: "[" + "{}," * int(3_300_000 * share) + "{}]",
    "small objects": lambda share: "[" + '{"":0},' * int(1_400_000 * share) + "{}]",
    "digits beyond any integer": lambda share: '{"schema_version": ' + "9" * int(9_900_000 * share) + "}",
    "integers of 4300 digits": lambda share: '{"a": [' + ",".join(["9" * 4300] * int(2300 * share)) + "]}",
    "one name again and again": lambda share: "{" + ",".join(['"a":1'] * int(1_600_000 * share)) + "}",
    "every name twice": lambda share: (
        "{" + ",".join(f'"a{i}":1,"a{i}":1' for i in range(int(410_000 * share))) + "}"
    ),
    "characters of four bytes": lambda share: (
        '{"schema_version": "' + "\U0001f600" * int(2_400_000 * share) + '"}'
    ),
}


def many(share):
    return {f"p{i}": "1" for i in range(int(650_000 * share))}
