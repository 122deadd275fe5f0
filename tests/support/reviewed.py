"""Reviews for tests of reports: small claims, and documents whose free text is hostile."""

import dataclasses
import html.parser

import dpmech as dm
from dpmech.reports import Review, Subject, attacks_of
from tests.support.saved import certificate

# Text that would do harm where it is not escaped, in HTML, Markdown, a terminal, or by turning a line round.
HOSTILE = (
    "</dd></style><script>alert(1)</script><img src=x onerror=alert(1)> {{ 7*7 }} {% raw %} "
    "| [x](javascript:alert(1)) `code` **bold** \x1b[2J \u202edesrever https://example.org"
    "\n\n# heading\n---\n"
)


def run_of(certificate, source="system entropy", **settings):
    """A run record of all steps of an unsampled certificate."""
    pattern = certificate.participation.pattern(certificate.strategy.n)
    return dm.RunRecord(
        certificate.certificate(1.0, 10.0),
        certificate.strategy.n,
        certificate.achieved,
        dm.certificates.Randomness(source, "0" * 64, seeded=False),
        dm.certificates.Randomness(source, "1" * 64, seeded=False),
        smallest_separation=pattern.min_sep,
        most_participations=pattern.max_participations,
        **settings,
    )


def review_of(*documents, claim_only=True):
    """The review of some documents, verified, under the names 0.json, 1.json."""
    named = {f"{number}.json": one for number, one in enumerate(documents)}
    subject = Subject.of(named)
    found = tuple(dataclasses.replace(dm.verify(named[name]), source=name) for name in subject.to_verify)
    attacks = None
    if all(found):
        stored = not found[0].profile_open
        attacks = attacks_of(
            subject.certificate, claim_only=claim_only, stored=stored, rng=1, progress=lambda line: None
        )
    return Review(subject, found, attacks)


def small(name="min-sep"):
    """A certificate of the saved ones."""
    return certificate(name)


class Page(html.parser.HTMLParser):
    """The elements of a page in order, its text, and whether they are closed as they were opened."""

    VOID = frozenset({"meta", "line", "polyline", "polygon", "circle", "input", "br", "link"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.text, self.open, self.faults = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, *one) for one in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, *one) for one in attrs]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def save_all(own):
    """Save a certificate, a run under it and a ledger with it, in the working directory."""
    own.save("certificate.json")
    run_of(own).save("run.json")
    ledger = dm.Ledger()
    ledger.add("first", own)
    ledger.save("ledger.json")
