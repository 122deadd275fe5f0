"""What a verification found: one line a check, and what follows from them."""

import dataclasses
import math
from typing import Any

from dpmech.accounting import Judgement
from dpmech.certificates import Certificate, RunRecord
from dpmech.composition import Ledger
from dpmech.free_text import on_one_line
from dpmech.numerics import next_up, product_up, short, typed
from dpmech.signing import Statement

__all__ = ["Check", "OwnDraw", "Verification"]


@dataclasses.dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: what was checked: "file", "sensitivity", "clip norm", "privacy", "evidence", "rigour", "run",
            "randomness", "examples" or "checkpoints", of ledgers "mode", "price", "limit" or "total",
            "signature", and of a policy its rule, such as "policy max_eps".
        ok: whether it held.
        detail: claimed against recomputed, in one line.
        route: how it was recomputed; empty where nothing was.

    Example:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> found = dm.verify(cal.certificate())
        >>> all(check.ok for check in found.checks)
        True
    """

    name: str
    ok: bool
    detail: str
    route: str = ""

    def __str__(self) -> str:
        by = f" [{self.route}]" if self.route else ""
        return f"{self.name}: {self.detail}{by}"


@dataclasses.dataclass(frozen=True)
class OwnDraw:
    """What draws of the verifier's own say about a sampled claim; printed, the statement that they prove.

    Attributes:
        judgement: whether they prove delta(eps) <= (1 + m) delta, at which beta and with how many draws.
        seeded: whether the caller of `verify` chose the random numbers: whoever made the file may know them.

    Example:
        >>> import dpmech as dm
        >>> bins = dm.BallsInBins(4)
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 2.0, 1e-3, participation=bins, rng=1)
        >>> dm.verify(cal.certificate(), rng=2).draw.claim
        'delta(2) <= (1 + 0.1) 0.001'
    """

    judgement: Judgement
    seeded: bool

    @property
    def claim(self) -> str:
        """delta(eps) <= (1 + m) delta, in numbers; m is rounded up."""
        found = self.judgement
        return f"delta({typed(found.eps)}) <= (1 + {short(found.slack)}) {typed(found.delta)}"

    def __str__(self) -> str:
        beta = short(self.judgement.beta)
        return f"{self.claim} except with probability {beta} of this check's own draw"

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `upper` is (1 + m) delta, rounded up."""
        found = self.judgement
        upper = product_up(next_up(1.0 + found.slack), found.delta)
        return {
            "holds": found.holds,
            "eps": found.eps,
            "delta": found.delta,
            "m": found.slack,
            "upper": upper,
            "beta": found.beta,
            "samples": found.samples,
            "seeded": self.seeded,
        }


def _percent(margin: float) -> str:
    """In per cent, rounded down; what is below zero by less than the last digit is the route's rounding."""
    rounding = -1e-5 <= margin < 0.0
    return f"{0.0 if rounding else math.floor(1e5 * margin) / 1e3:+.3f} %"


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of `dm.verify`; it is true in a condition exactly if every check held.

    Attributes:
        source: the file, or "certificate" for an object.
        certificate: what was verified; None of a ledger, and where the file could not be read.
        checks: in the order in which they were made.
        margin: by how much, relative, sigma exceeds what the tightest second route needs, to first order;
            negative where it falls short; None where nothing was recomputed.
        run: the run record whose certificate it is; None where a certificate was verified.
        ledger: what was verified, where it was a ledger.
        draw: what draws of the verifier's own prove, where the claim of a certificate rests on a certified
            sample; else None.
        signed: who issued the file, where a trusted key signed that; else None.

    Example:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.8), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> found = dm.verify(cal.certificate())
        >>> found.ok, found.failures
        (True, ())
    """

    source: str
    certificate: Certificate | None
    checks: tuple[Check, ...]
    margin: float | None
    run: RunRecord | None = None
    ledger: Ledger | None = None
    draw: OwnDraw | None = None
    signed: Statement | None = None

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for every check that did not hold."""
        return tuple(str(check) for check in self.checks if not check.ok)

    @property
    def routes(self) -> tuple[str, ...]:
        """The routes by which something was recomputed, each once."""
        return tuple(dict.fromkeys(check.route for check in self.checks if check.route))

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if not self.ok:
            return "\n".join(on_one_line(f"{self.source}: REFUSED: {line}") for line in self.failures)
        certificate = self.certificate
        headline = "" if certificate is None else certificate.headline
        headline = headline if self.run is None else str(self.run)
        headline = headline if self.ledger is None else self.ledger.headline
        margin = "" if self.margin is None else f"; sigma margin {_percent(self.margin)}"
        proved = "" if self.draw is None else f"; {self.draw}"
        signed = "" if self.signed is None else f"; {self.signed}"
        if self.signed is None and any(check.name == "signature" for check in self.checks):
            signed = "; not signed"  # whoever named a key should not take silence for a signature
        return on_one_line(f"{self.source}: VERIFIED: {headline}{margin}{proved}{signed}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "source": self.source,
            "ok": self.ok,
            "guarantee": self._guarantee(),
            "fingerprint": None if self.certificate is None else self.certificate.fingerprint(),
            "margin": self.margin,
            "run": None if self.run is None else self.run.to_dict()["run"],
            "ledger": None if self.ledger is None else self.ledger.to_dict()["ledger"],
            "draw": None if self.draw is None else self.draw.to_dict(),
            "signed": None if self.signed is None else self.signed.to_dict(),
            "routes": list(self.routes),
            "failures": list(self.failures),
            "checks": [dataclasses.asdict(check) for check in self.checks],
        }

    def _guarantee(self) -> str | None:
        if self.ledger is not None:
            return str(self.ledger.guarantee)
        return None if self.certificate is None else str(self.certificate.guarantee)
