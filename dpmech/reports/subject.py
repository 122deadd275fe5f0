"""What a report is about: a certificate, and beside it the run under it and the ledger that it stands in."""

import dataclasses
from collections.abc import Mapping

from dpmech.certificates import Certificate, Document, RunRecord
from dpmech.composition import Ledger
from dpmech.exceptions import InvalidParameterError, shown_value

__all__ = ["Subject"]


@dataclasses.dataclass(frozen=True)
class Subject:
    """One certificate with the documents that go with it.

    Attributes:
        certificate: the claim; where there is a run, the one inside it, which is what was trained under.
        run: what was executed under it.
        ledger: of which it is an entry.
        names: of the files, by kind: "certificate", "run record", "ledger".
        fixed: what the file of the certificate leaves open and the run fixed, in words, one entry a term.
    """

    certificate: Certificate
    run: RunRecord | None
    ledger: Ledger | None
    names: Mapping[str, str]
    fixed: tuple[str, ...] = ()

    @classmethod
    def of(cls, documents: Mapping[str, Document]) -> "Subject":
        """From the documents of a report, by the names of their files, in any order.

        Raises:
            InvalidParameterError: on two of a kind; on a ledger alone; on a run or a ledger that is not about
                the certificate, or a ledger where it is only a run of a private selection.
        """
        names: dict[str, str] = {}
        found: dict[str, Document] = {}
        for name, one in documents.items():
            kind = _kind(one)
            if kind in found:
                raise InvalidParameterError("files", name, f"left out: {names[kind]} is a {kind} already")
            found[kind], names[kind] = one, name
        run, ledger, own = (found.get(kind) for kind in ("run record", "ledger", "certificate"))
        certificate = run.certificate if own is None and isinstance(run, RunRecord) else own
        if not isinstance(certificate, Certificate):
            ledgers = names.get("ledger", "")
            raise InvalidParameterError("files", ledgers, "given with a certificate or a run record")
        fixed: tuple[str, ...] = ()
        if isinstance(run, RunRecord) and run.certificate is not certificate:
            fixed = _fixed_by(run.certificate, certificate, names)
            certificate = run.certificate
        if isinstance(ledger, Ledger):
            _check_entered(certificate, ledger, names["ledger"])
        return cls(
            certificate,
            run if isinstance(run, RunRecord) else None,
            ledger if isinstance(ledger, Ledger) else None,
            names,
            fixed,
        )

    @property
    def to_verify(self) -> tuple[str, ...]:
        """The files whose verification covers all: a run record holds its certificate."""
        named = "run record" if self.run is not None else "certificate"
        return tuple(self.names[kind] for kind in (named, "ledger") if kind in self.names)


# What a certificate says of the training, and may leave open for it to fix.
_TERMS = {
    "clip_norm": "clip norm",
    "expected_batch_size": "expected batch size",
    "dataset_size": "dataset size",
}
_CLAIMED = {
    "sigma": "sigma",
    "budget": "budget",
    "strategy": "strategy",
    "participation": "participation",
    "adjacency": "adjacency",
    "unit": "unit",
} | _TERMS
_SHOWN = 60


def _fixed_by(executed: Certificate, stated: Certificate, names: Mapping[str, str]) -> tuple[str, ...]:
    """What a run fixed that its certificate's file leaves open.

    How a claim was found may be told otherwise: the run brings evidence of its own, which is verified.

    Raises:
        InvalidParameterError: if they are of two claims, or the file fixes something else, naming that.
    """
    fixed, differing = [], []
    for name, words in _CLAIMED.items():
        own, other = getattr(executed, name), getattr(stated, name)
        if own == other:
            continue
        if name in _TERMS and other is None:
            fixed.append(f"{words} {own}, left open in {names['certificate']}")
        else:
            there, here = (shown_value(one, _SHOWN) for one in (other, own))
            differing.append(f"{words} {there} there, {here} in the run")
    if differing:
        more = f", and {len(differing) - 1} more differences" if len(differing) > 1 else ""
        raise InvalidParameterError(
            "files",
            names["run record"],
            f"a run under the certificate in {names['certificate']} ({differing[0]}{more})",
        )
    return tuple(fixed)


def _check_entered(certificate: Certificate, ledger: Ledger, name: str) -> None:
    """Refuse a ledger without the certificate, or where it only stands for the runs of a selection.

    A report tells the eps of one run, and the best of many costs more.
    """
    own = certificate.fingerprint()
    entries = [release for release in ledger.releases if release.certificate.fingerprint() == own]
    if not entries:
        raise InvalidParameterError("files", name, "a ledger that has the certificate among its releases")
    if all(release.runs is not None for release in entries):
        raise InvalidParameterError(
            "files",
            name,
            "a ledger that has the certificate as a release of its own: there it is one run of a private "
            "selection, whose best costs more than the certificate says (dpmech ledger show has the total)",
        )


def _kind(one: Document) -> str:
    if isinstance(one, Ledger):
        return "ledger"
    return "run record" if isinstance(one, RunRecord) else "certificate"
