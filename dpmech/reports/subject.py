"""What a report is about: a certificate, and beside it the run under it and the ledger that it stands in."""

import dataclasses
from collections.abc import Mapping

from dpmech.certificates import Certificate, Document, RunRecord
from dpmech.composition import Ledger
from dpmech.exceptions import InvalidParameterError

__all__ = ["Subject"]


@dataclasses.dataclass(frozen=True)
class Subject:
    """One certificate with the documents that go with it.

    Attributes:
        certificate: the claim; that of the run where no file of its own was given.
        run: what was executed under it.
        ledger: of which it is an entry.
        names: of the files, by kind: "certificate", "run record", "ledger".
    """

    certificate: Certificate
    run: RunRecord | None
    ledger: Ledger | None
    names: Mapping[str, str]

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
        if isinstance(run, RunRecord) and run.certificate != certificate:
            raise InvalidParameterError(
                "files", names["run record"], f"a run under the certificate in {names['certificate']}"
            )
        if isinstance(ledger, Ledger):
            _check_entered(certificate, ledger, names["ledger"])
        return cls(
            certificate,
            run if isinstance(run, RunRecord) else None,
            ledger if isinstance(ledger, Ledger) else None,
            names,
        )

    @property
    def to_verify(self) -> tuple[str, ...]:
        """The files whose verification covers all: a run record holds its certificate."""
        named = "run record" if self.run is not None else "certificate"
        return tuple(self.names[kind] for kind in (named, "ledger") if kind in self.names)


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
