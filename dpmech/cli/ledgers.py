"""`dpmech ledger`: releases, counts and mechanisms about the same people, and their total."""

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from dpmech.certificates import Certificate
from dpmech.cli.commands import Command, Decorator, Group, MissingOptionsError, Refusal, plain, with_options
from dpmech.cli.files import read_certificate, read_ledger
from dpmech.cli.options import output_options
from dpmech.cli.parameters import BETWEEN_0_AND_1, POSITIVE, OneOf, Real, Whole
from dpmech.cli.printing import Column, Row, stacked, width
from dpmech.cli.running import Run, runs, worker_options
from dpmech.engines import DiscreteGaussian, basic_mechanism_from
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.files import on_one_line
from dpmech.ledgers import (
    AccountingMethod,
    ClaimAccounting,
    CountsRelease,
    GdpAccounting,
    Ledger,
    Release,
    RenyiAccounting,
    locked,
)
from dpmech.mechanism import Adjacency, PrivacyBudget, Unit
from dpmech.numerics import counted, down, short, typed, up
from dpmech.reports import total_of, total_words

_COLUMNS = (
    Column("name", "release", fixed=True),
    Column("eps", "eps"),
    Column("delta", "delta"),
    Column("sigma", "sigma"),
    Column("batch", "batch"),
    Column("participation", "participation", text=True),
    Column("guarantee", "guarantee", text=True),
)


def ledger_text(ledger: Ledger, delta: float | None = None, *, profiles: bool = False) -> list[Any]:
    """The text to print: headline, releases, total.

    Args:
        ledger: the ledger.
        delta: delta of the total eps; None for that of the budget, or the sum of those of the releases.
        profiles: whether privacy profiles that take work may be computed for the total.
    """
    rows = [Row(_cells(release)) for release in ledger.releases]
    parts: list[Any] = [on_one_line(plain(ledger.headline))]
    if rows:
        parts += stacked(_COLUMNS, rows, width())
    parts += [on_one_line(plain(f"counts {one.name}: {_counts(one)}")) for one in ledger.counts]
    parts += [
        on_one_line(plain(f"mechanism {one.name}: {counted(one.count, 'release')} of {one.mechanism!r}"))
        for one in ledger.mechanisms
    ]
    total = total_of(ledger, delta, profiles=profiles)
    if total["by_claims"]:
        releases = counted(total["by_claims"], "release")
        parts.append(f"{releases} by their claims; `dpmech ledger show` composes profiles")
    if "reason" in total:
        return [
            *parts,
            f"total at delta {short(total['delta'])}: none: {on_one_line(plain(total['reason']))}",
        ]
    return [*parts, f"total: {total_words(total)}"]


def _cells(release: Release) -> dict[str, str]:
    own = release.certificate
    return {
        "name": release.name if release.runs is None else f"{release.name}, best of {release.runs!r}",
        "eps": short(own.budget.eps),
        "delta": short(own.budget.delta),
        "sigma": up(own.sigma),
        "batch": release.batch or "",
        "participation": plain(repr(own.participation)),
        "guarantee": str(own.guarantee),
    }


def _counts(entry: CountsRelease) -> str:
    own = entry.counts
    integers = counted(own.releases, "integer")
    return (
        f"{integers} that one {own.unit.value} changes by up to {own.sensitivity}, "
        f"noise of sigma {up(float(own.sigma))}, rho {up(own.rho)}"
    )


def ledger_record(ledger: Ledger, delta: float | None = None, *, profiles: bool = False) -> dict[str, Any]:
    """A ledger as plain data."""
    budget, numbered = ledger.budget, list(enumerate(ledger.counts, start=1))
    others = list(enumerate(ledger.mechanisms, start=1))
    return {
        "mode": ledger.mode.value,
        "closed": ledger.closed,
        "adjacency": ledger.adjacency.value,
        "budget": None if budget is None else {"eps": budget.eps, "delta": budget.delta},
        "accounting": None if ledger.filter is None else ledger.filter.settings(),
        "guarantee": str(ledger.guarantee),
        "releases": [
            {
                "name": release.name,
                "batch": release.batch,
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
        **({"mechanisms": [one.settings(number) for number, one in others]} if others else {}),
        "total": total_of(ledger, delta, profiles=profiles),
    }


_ACCOUNTING = ("gdp", "renyi", "claims")
_AT = click.option(
    "--delta", type=BETWEEN_0_AND_1, help="Delta of the printed eps [that of the budget, or the sum]."
)
_LEDGER = click.argument("path", metavar="LEDGER", type=click.Path(path_type=Path))
_NAME = click.option("--name", help="Name of the release, new in this ledger. [required]")
_CLOSE = click.option(
    "--close", is_flag=True, help="Close a non-adaptive list, so that nothing more can be added."
)


def _list_options(usual: str) -> Decorator:
    """The options of entries without a certificate; `usual` says which adjacency a new ledger has."""
    unit = OneOf(("example", "user"))
    return with_options(
        click.option(
            "--unit", type=unit, default="example", help="The unit whose presence is hidden [example]."
        ),
        _CLOSE,
        click.option("--new", is_flag=True, help="Start the ledger, a non-adaptive list."),
        click.option(
            "--adjacency",
            type=OneOf(tuple(one.value for one in Adjacency)),
            help=f"With --new: neighbouring relation of datasets [{usual}].",
        ),
    )


@click.group(
    name="ledger",
    cls=Group,
    examples=["dpmech ledger add ledger.json certificate.json --name run-1 --batch run-1 --new"],
)
def ledger() -> None:
    """Account for several releases about the same people."""


@ledger.command(
    name="add",
    cls=Command,
    short_help="Enter a release, before its first step.",
    examples=[
        "dpmech ledger add ledger.json certificate.json --name run-1 --batch run-1 --new",
        "dpmech ledger add budget.json certificate.json --name run-1 --batch run-1 --new --eps 8 --delta "
        "1e-5 --accounting renyi",
        "dpmech ledger add ledger.json certificate.json --name run-2 --batch run-2 --close",
    ],
)
@_LEDGER
@click.argument("certificate", metavar="CERTIFICATE", type=click.Path())
@_NAME
@click.option("--batch", help="For a sampled release: name of the batches that it uses, new in this ledger.")
@_CLOSE
@click.option("--new", is_flag=True, help="Start the ledger; without a budget it is a non-adaptive list.")
@click.option(
    "--eps",
    type=POSITIVE,
    help="With --new: eps of a budget, for adaptive releases.",
)
@click.option("--delta", type=BETWEEN_0_AND_1, help="With --new: delta of the budget.")
@click.option(
    "--accounting",
    type=OneOf(_ACCOUNTING),
    help="With --new and a budget, the accounting method: Gaussian DP (gdp), a Renyi order, or claims [gdp].",
)
@click.option(
    "--order",
    type=Whole(2, 10_000),
    help="renyi: the order [the one that admits the most Gaussian releases].",
)
@click.option(
    "--slack",
    type=Real(minimum=0.0, maximum=1.0, open_maximum=True),
    help="claims: part of delta that is set aside for advanced composition [0].",
)
@click.option(
    "--allow-estimates", is_flag=True, help="With --new: accept releases whose guarantee is an estimate."
)
@output_options
@runs("ledger add", required=("name",))
def add(
    path: Path,
    certificate: str,
    *,
    run: Run,
    name: str,
    batch: str | None,
    close: bool,
    new: bool,
    **settings: Any,  # noqa: ANN401 - click passes options by name
) -> None:
    """Add a certified release to a ledger, before its first step.

    A non-adaptive list contains releases that were decided before anyone saw a result; close it with the last
    entry. With a budget, releases may depend on earlier results. Exit code 1 if the release would exceed
    the budget; the ledger is then unchanged.
    """
    own = read_certificate(certificate)
    if own.participation.random and batch is None:
        raise MissingOptionsError(["--batch (the batches of this release are sampled)"])
    opened = functools.partial(_started if new else _continued, path, own, settings)
    with _entering(run, path, name, opened, close=close) as book:
        book.add(name, own, batch=batch)
    run.note(f"entered, not verified: dpmech verify {shlex.quote(certificate)}")


@contextlib.contextmanager
def _entering(
    run: Run, path: Path, name: str, opened: Callable[[], Ledger], *, close: bool
) -> Iterator[Ledger]:
    """The ledger, to which an entry is added inside; it is then saved and printed.

    Simultaneous commands add their entries one after the other.
    """
    with locked(path) if path.parent.is_dir() else contextlib.nullcontext():
        book = opened()
        try:
            yield book
        except InvalidParameterError as error:
            if error.name != "release":
                raise
            reason = f"{name} was not entered, because it would exceed the budget; {_left(book, None)}"
            raise Refusal(reason, click.get_current_context(), code=1) from error
        if close:
            book.close()
        book.save(path)
    run.answer(
        lambda: {"path": str(path), "ledger": ledger_record(book)},
        lambda: [on_one_line(f"{path}: {name} entered"), *ledger_text(book)],
    )


def _started(path: Path, own: Certificate, settings: dict[str, Any]) -> Ledger:
    if path.exists():
        raise InvalidParameterError("path", str(path), "a new file with --new")
    if not path.parent.is_dir():
        raise InvalidParameterError("path", str(path), "a file in a folder that exists")
    eps, delta, kind = settings["eps"], settings["delta"], settings["accounting"]
    if (eps is None) != (delta is None):
        raise MissingOptionsError(["eps" if eps is None else "delta"])
    for key in ("accounting", "order", "slack"):
        if settings[key] is not None and eps is None:
            raise InvalidParameterError(key, settings[key], "left out without a budget (--eps and --delta)")
    for key, owner in (("order", "renyi"), ("slack", "claims")):
        if settings[key] is not None and kind != owner:
            raise InvalidParameterError(key, settings[key], f"left out without --accounting {owner}")
    return Ledger(
        own.adjacency,
        budget=None if eps is None else PrivacyBudget(eps, delta),
        accounting=None if eps is None else _accounting(kind, settings),
        allow_estimates=settings["allow_estimates"],
    )


def _accounting(kind: str | None, settings: dict[str, Any]) -> AccountingMethod:
    if kind == "renyi":
        return RenyiAccounting(settings["order"])
    return ClaimAccounting(settings["slack"] or 0.0) if kind == "claims" else GdpAccounting()


def _continued(path: Path, _: Certificate, settings: dict[str, Any]) -> Ledger:
    for key, value in settings.items():
        if value not in (None, False):
            raise InvalidParameterError(key, value, "left out without --new: the ledger has it already")
    if not path.exists():
        raise InvalidParameterError("path", str(path), "a ledger that exists", "; --new starts one")
    return read_ledger(path)


@ledger.command(
    name="show",
    cls=Command,
    short_help="Print the releases and their total.",
    examples=[
        "dpmech ledger show ledger.json",
        "dpmech ledger show ledger.json --delta 1e-5 --json",
        "dpmech ledger show ledger.json --claims",
    ],
)
@_LEDGER
@_AT
@click.option(
    "--claims",
    is_flag=True,
    help="Compose Balls-in-Bins releases by their claims, immediately; profiles take 40 to 200 seconds.",
)
@worker_options
@output_options
@runs("ledger show")
def show_ledger(
    path: Path,
    *,
    run: Run,
    delta: float | None,
    claims: bool,
) -> None:
    """Print the releases of a ledger, and their total eps.

    For a non-adaptive list with more than one release, the privacy profiles are composed.
    """
    book = read_ledger(path)
    if not claims and book.entries > 1 and book.waiting:
        with (
            run.working("profiles", len(book.waiting)) as (executor, report),
            contextlib.suppress(UnsupportedCombinationError),  # its claim is used instead
        ):
            book.profile(executor=executor, progress=report)
    run.answer(
        lambda: {"path": str(path), "ledger": ledger_record(book, delta, profiles=not claims)},
        lambda: ledger_text(book, delta, profiles=not claims),
    )


@ledger.command(
    name="remaining",
    cls=Command,
    short_help="Print what remains of a budget.",
    examples=[
        "dpmech ledger remaining budget.json",
        "dpmech ledger remaining budget.json certificate.json",
    ],
)
@_LEDGER
@click.argument("certificate", metavar="[CERTIFICATE]", type=click.Path(), required=False)
@_AT
@output_options
@click.pass_context
@runs("ledger remaining")
def remaining(
    ctx: click.Context,
    path: Path,
    certificate: str | None,
    *,
    run: Run,
    delta: float | None,
) -> None:
    """Print what remains of the budget of a ledger, and whether it would accept CERTIFICATE.

    Exit code 1 if it would not.
    """
    book = read_ledger(path)
    if book.budget is None:
        raise InvalidParameterError(
            "path",
            str(path),
            "a ledger with a budget",
            ": a non-adaptive list has none, and is composed as a whole",
        )
    fits = None if certificate is None else not book.would_exceed(read_certificate(certificate))
    at = book.budget.delta if delta is None else delta
    left = book.remaining
    record = {
        "path": str(path),
        "mu": left.mu,
        "left": list(left.left),
        "delta": at,
        "eps": left.epsilon(at),
        "certificate": certificate,
        "fits": fits,
    }
    verdict = on_one_line(f"{certificate}: {'fits' if fits else 'would exceed the budget'}")
    run.answer(lambda: record, lambda: [_left(book, delta), *([] if fits is None else [verdict])])
    ctx.exit(0 if fits in (None, True) else 1)


def _left(book: Ledger, delta: float | None) -> str:
    """The remaining budget, in a sentence."""
    left = book.remaining
    at = delta if delta is not None or book.budget is None else book.budget.delta
    eps = "" if at is None else f", such as eps {down(left.epsilon(at))} at delta {typed(at)}"
    return f"left for one unsampled release: sensitivity over sigma up to {down(left.mu)}{eps}"


@click.command(
    name="add-counts",
    cls=Command,
    short_help="Enter counts with integer noise, before they are drawn.",
    examples=[
        "dpmech ledger add-counts ledger.json --name classes --sigma 20 --releases 3 --new",
        "dpmech ledger add-counts ledger.json --name cities --sigma 81/2 --sensitivity 3 --close",
    ],
    absent=dict.fromkeys(
        ("--eps", "--delta", "--accounting"),
        "counts go into non-adaptive lists; a budget's accounting methods have no price for them",
    ),
)
@_NAME
@_LEDGER
@click.option("--sigma", help="Scale of the noise, a number or a fraction such as 81/2. [required]")
@click.option(
    "--sensitivity",
    type=Whole(1, 10**9),
    default=1,
    help="Largest change that one unit makes to one integer [1].",
)
@click.option(
    "--releases", type=Whole(1, 10**9), default=1, help="Number of integers that one unit changes [1]."
)
@_list_options("add_remove")
@output_options
@runs("ledger add-counts", required=("name", "sigma"))
def add_counts(
    path: Path,
    *,
    run: Run,
    name: str,
    sigma: str,
    sensitivity: int,
    releases: int,
    unit: str,
    close: bool,
    new: bool,
    adjacency: str | None,
) -> None:
    """Add counts to a non-adaptive ledger, before the first count is drawn.

    The noise is that of `dpmech.drawing.discrete_gaussian`. Each count may depend on earlier results.
    """
    opened = functools.partial(_list_at, path, new=new, adjacency=adjacency, usual=Adjacency.ADD_REMOVE)
    with _entering(run, path, name, opened, close=close) as book:
        book.add_counts(
            name, DiscreteGaussian(_fraction(sigma), sensitivity, releases, book.adjacency, Unit(unit))
        )


def _fraction(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InvalidParameterError("sigma", text, "a number or a fraction such as 81/2") from None


_FIELDS = {
    "laplace": ("scale", "sensitivity"),
    "discrete_laplace": ("scale", "sensitivity"),
    "randomized_response": ("truth_prob", "categories"),
    "gaussian": ("sigma", "sensitivity"),
    "pure_dp": ("eps",),
    "approximate_dp": ("eps", "delta"),
    "zcdp": ("rho",),
}
_INTEGERS = {("discrete_laplace", "sensitivity"), ("randomized_response", "categories")}


@click.command(
    name="add-mechanism",
    cls=Command,
    short_help="Enter a mechanism or a bare claim, before it runs.",
    examples=[
        "dpmech ledger add-mechanism ledger.json --name incomes --kind laplace --scale 20 --sensitivity 1 "
        "--count 100 --new",
        "dpmech ledger add-mechanism ledger.json --name a-tool --kind approximate_dp --eps 0.5 --delta 1e-7 "
        "--close",
    ],
)
@_LEDGER
@click.option("--name", help="Name of the entry, new in this ledger. [required]")
@click.option(
    "--kind",
    type=OneOf(tuple(_FIELDS)),
    metavar="KIND",
    help=f"{', '.join(_FIELDS)}. [required]",
)
@click.option("--scale", type=POSITIVE, help="laplace, discrete_laplace: the scale of the noise.")
@click.option("--sigma", type=POSITIVE, help="gaussian: the standard deviation of the noise.")
@click.option(
    "--sensitivity",
    type=POSITIVE,
    help="laplace, discrete_laplace (an integer), gaussian (L2 norm): the largest change between neighbours "
    "in the ledger's adjacency.",
)
@click.option(
    "--truth-prob", type=BETWEEN_0_AND_1, help="randomized_response: probability of the true category."
)
@click.option("--categories", type=Whole(2, 10**9), help="randomized_response: the number of categories [2].")
@click.option("--eps", type=POSITIVE, help="pure_dp, approximate_dp: the claim.")
@click.option("--delta", type=BETWEEN_0_AND_1, help="approximate_dp: the claim.")
@click.option("--rho", type=POSITIVE, help="zcdp: the claim.")
@click.option("--count", type=Whole(1, 10**6), default=1, help="Number of releases [1].")
@_list_options("add_remove; randomized_response: replace_one")
@output_options
@runs("ledger add-mechanism", required=("name", "kind"))
def add_mechanism(
    path: Path,
    *,
    run: Run,
    name: str,
    kind: str,
    count: int,
    unit: str,
    close: bool,
    new: bool,
    adjacency: str | None,
    **given: Any,  # noqa: ANN401 - click passes options by name
) -> None:
    """Add a mechanism, defined by its distribution or a claim, to a ledger before it runs.

    Exit code 1 if its releases would exceed the budget; the ledger is then unchanged.
    """
    fields = _fields_of(kind, given)
    usual = Adjacency.REPLACE_ONE if kind == "randomized_response" else Adjacency.ADD_REMOVE
    opened = functools.partial(_list_at, path, new=new, adjacency=adjacency, usual=usual)
    with _entering(run, path, name, opened, close=close) as book:
        mechanism = basic_mechanism_from(fields | {"kind": kind, "unit": unit}, book.adjacency)
        book.add_mechanism(name, mechanism, count=count)


def _fields_of(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of this kind of mechanism; others must be left out."""
    given = {"categories": 2} | {key: value for key, value in given.items() if value is not None}
    names = _FIELDS[kind]
    missing = [f"--{key.replace('_', '-')}" for key in names if key not in given]
    if missing:
        raise MissingOptionsError(missing)
    for key, value in given.items():
        if key not in names and (key, value) != ("categories", 2):
            raise InvalidParameterError(key, value, f"left out with --kind {kind}")
        if (kind, key) in _INTEGERS and value != int(value):
            raise InvalidParameterError(key, value, f"an integer with --kind {kind}")
    return {key: int(given[key]) if (kind, key) in _INTEGERS else given[key] for key in names}


def _list_at(path: Path, *, new: bool, adjacency: str | None, usual: Adjacency) -> Ledger:
    """The ledger to which an entry without a certificate is added."""
    if adjacency is not None and not new:
        raise InvalidParameterError(
            "adjacency", adjacency, "left out without --new: the ledger has it already"
        )
    if path.exists() == new:
        accepted = "a new file with --new" if new else "a ledger that exists, or --new"
        raise InvalidParameterError("path", str(path), accepted)
    if not new:
        return read_ledger(path)
    return Ledger(usual if adjacency is None else Adjacency(adjacency))
