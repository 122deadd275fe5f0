"""A ledger as people read it, and as data."""

from typing import Any

from dpmech.cli.printing import width
from dpmech.cli.tables import Column, Row, stacked
from dpmech.cli.words import plain
from dpmech.composition import CountsRelease, Ledger, Release
from dpmech.free_text import on_one_line
from dpmech.numerics import between, short, up
from dpmech.reports import total_of

__all__ = ["ledger_record", "ledger_text"]

_COLUMNS = (
    Column("name", "release", fixed=True),
    Column("eps", "eps"),
    Column("delta", "delta"),
    Column("sigma", "sigma"),
    Column("lot", "lot"),
    Column("participation", "participation", text=True),
    Column("guarantee", "guarantee", text=True),
)


def ledger_text(ledger: Ledger, delta: float | None = None, *, profiles: bool = False) -> list[Any]:
    """What to print: headline, releases, total.

    Args:
        ledger: of which.
        delta: at which eps is totalled; None for that of the budget, or the sum of those of the releases.
        profiles: whether privacy profiles that take work may be computed for the total.
    """
    rows = [Row(_cells(release)) for release in ledger.releases]
    parts: list[Any] = [on_one_line(plain(ledger.headline))]
    if rows:
        parts += stacked(_COLUMNS, rows, width())
    parts += [on_one_line(plain(f"counts {one.name}: {_counts(one)}")) for one in ledger.counts]
    total = total_of(ledger, delta, profiles=profiles)
    if total["by_claims"]:
        parts.append(f"{total['by_claims']} releases by their claims; `dpmech ledger show` composes profiles")
    if "reason" in total:
        return [
            *parts,
            f"total at delta {short(total['delta'])}: none: {on_one_line(plain(total['reason']))}",
        ]
    interval = between(total["eps_lower"], total["eps_upper"])
    return [*parts, f"total: eps in {interval} at delta {short(total['delta'])}: {total['guarantee']}"]


def _cells(release: Release) -> dict[str, str]:
    own = release.certificate
    return {
        "name": release.name if release.runs is None else f"{release.name}, best of {release.runs!r}",
        "eps": short(own.budget.eps),
        "delta": short(own.budget.delta),
        "sigma": up(own.sigma),
        "lot": release.lot or "",
        "participation": plain(repr(own.participation)),
        "guarantee": str(own.guarantee),
    }


def _counts(entry: CountsRelease) -> str:
    own = entry.counts
    integers = "1 integer" if own.releases == 1 else f"{own.releases} integers"
    return (
        f"{integers} that one {own.unit.value} changes by up to {own.sensitivity}, "
        f"noise of sigma {up(float(own.sigma))}, rho {up(own.rho)}"
    )


def ledger_record(ledger: Ledger, delta: float | None = None, *, profiles: bool = False) -> dict[str, Any]:
    """A ledger as plain data."""
    budget, numbered = ledger.budget, list(enumerate(ledger.counts, start=1))
    return {
        "mode": ledger.mode.value,
        "closed": ledger.closed,
        "adjacency": ledger.adjacency.value,
        "budget": None if budget is None else {"eps": budget.eps, "delta": budget.delta},
        "currency": None if ledger.filter is None else ledger.filter.settings(),
        "guarantee": str(ledger.guarantee),
        "releases": [
            {
                "name": release.name,
                "lot": release.lot,
                "eps": release.certificate.budget.eps,
                "delta": release.certificate.budget.delta,
                "sigma": release.certificate.sigma,
                "participation": release.certificate.participation.to_dict(),
                "guarantee": str(release.certificate.guarantee),
                "price": list(release.price),
                "fingerprint": release.certificate.fingerprint(),
            }
            | ({} if release.runs is None else {"runs": release.runs.settings()})
            for release in ledger.releases
        ],
        **({"counts": [one.settings(number) for number, one in numbered]} if numbered else {}),
        "total": total_of(ledger, delta, profiles=profiles),
    }
