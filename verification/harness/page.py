"""The pages (docs/verification*.md), from the registry and the outcomes."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from verification.harness.headlines import headline_rows, headlines, place_rows, places
from verification.harness.outcomes import Outcome
from verification.harness.registry import Paper, Statement
from verification.harness.verdict import STATUSES, WORDS

_HEAD = """# Verification

dpmech is based on five papers, and we are grateful for them. These pages are the result of reading them
closely, and of running a check for each statement that dpmech uses or builds on. We judge a statement as its
authors would after reading it again: under the conditions that it prints, and in the reading that makes
sense. If we disagree, we state the place, what is printed and what we believe is right, so that anyone can
check it in a minute. We read preprints (and one report of a course project) in text conversions; several
errors may come from the conversion, and some will be our own. Corrections are welcome.

The statements are in `verification/registry/`, one TOML file for each paper. `python -m verification` is part
of a checkout, not of the installed package. It runs all but the longest checks in about a minute, with
`--full` all checks, and with `--id cgd.thm1` a single one. With `--write` it writes these pages; checks that
were not run keep their latest result. In a statement, "DP-SGD" has the meaning of the papers: independent
noise under any sampling; elsewhere in this documentation it means independent noise under Poisson sampling.
"""

_HEADLINES = """## Headline results

The table shows the headline results of each paper, each from one command in a checkout. Computed numbers in
the column *here* are rounded up, measured ones to the nearest; eps and sigma are certified.
`python -m verification.tables --help` lists the tables. Their output shows every printed cell next to ours,
with the reason if they differ. `python -m verification --id NAME` checks the statement in the last column.
`dpmech audit --published dp_muon` needs no checkout
([](risk.md#published-claims)). `docs/examples/papers/` has the settings of the papers' runs as plans:
`dpmech compare --plan docs/examples/papers/muon_e2e.toml` calibrates their noise.
"""

_WHERE = """### Where to find each result

Accuracies, BLEU and run times of the authors' models are not reproduced: they need those models, data and
machines. Everything else was tried from the papers and these pages alone.
"""

# The papers' names in the table of headlines.
_NAMES = {
    "lambda_cgd": "DP-lambda-CGD",
    "muon": "DP-Muon",
    "noise_share": "noise share",
    "sde": "SDE",
    "spectral": "spectral denoising",
}

_ERRATA = """## Errata of the papers

This section lists what is printed and what we believe is right, ordered by consequence: statements that fail
under their own hypotheses, misprints, conditions that are not printed, steps of proofs, numbers that we could
not recompute, and wording. The papers are preprints and a report of a course project, read in text
conversions, so a misprint may come from the text that we have. These errata do not mean that the results of a
paper are not useful: dpmech is built on them, with these corrections. Each entry is an executable check;
`python -m verification --id ov.theta` runs one.
"""

# The sections of the errata, in their order: heading, verdict, whether the misprint changes a number.
_SECTIONS = (
    ("Counterexamples", "COUNTEREXAMPLE", None),
    ("Misprints that change a number", "MISPRINT", True),
    ("Other misprints", "MISPRINT", False),
    ("Misprints in the proof of a true statement", "CONFIRMED, MISPRINT IN THE PROOF", None),
    ("Conditions that are not printed", "CONDITIONAL", None),
    ("Steps of proofs", "PROOF GAP", None),
    ("Not reproduced", "NOT REPRODUCED", None),
    ("Wording", "WORDING", None),
)
_KEPT = re.compile(r"(\$[^$]+\$|`[^`]+`)")


def write_pages(
    folder: Path, entries: dict[str, Statement], papers: dict[str, Paper], outcomes: dict[str, Outcome]
) -> None:
    """Write verification.md, which ends with the errata, and verification_PAPER.md for every paper.

    Args:
        folder: where to.
        entries: the registry.
        papers: the papers' titles and sources.
        outcomes: what the latest runs found; a statement without one is shown as not run yet.
    """
    names = dict.fromkeys(entry.paper for entry in entries.values())
    index = _index(list(names), entries, papers)
    table = headline_rows(headlines(), _NAMES)
    where = place_rows(places(), _NAMES)
    results = [_HEADLINES, *table, "", _WHERE, *where, ""]
    _write(folder / "verification.md", [*index, "", *results, *_errata(entries, papers)])
    for name in names:
        own = [entry for entry in entries.values() if entry.paper == name]
        _write(folder / f"verification_{name}.md", _paper_page(own, papers[name], outcomes))


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _index(names: list[str], entries: dict[str, Statement], papers: dict[str, Paper]) -> list[str]:
    lines = [_HEAD, "| verdict | meaning |", "|---|---|"]
    lines += [f"| {word} | {meaning} |" for word, meaning in WORDS.items()]
    lines += ["", "| paper | statements | page |", "|---|---|---|"]
    counts = Counter(entry.paper for entry in entries.values())
    for name in names:
        lines.append(f"| {_plain(papers[name].title)} | {counts[name]} | [{name}](verification_{name}.md) |")
    lines += ["", "```{toctree}", ":hidden:", ""]
    lines += [f"verification_{name}" for name in names]
    return [*lines, "```"]


def _paper_page(own: list[Statement], paper: Paper, outcomes: dict[str, Outcome]) -> list[str]:
    lines = [f"# {_plain(paper.title)}", ""]
    lines += [f"{_plain(', '.join(paper.authors))} ({paper.year}). {_plain(paper.source)}", ""]
    lines += ["This page lists our verdicts on the statements of this paper. [Verification](verification.md)"]
    lines += ["explains the verdicts, and the [errata](verification.md#errata-of-the-papers) list the"]
    lines += ['corrections, ordered by consequence. In a statement, "DP-SGD" has the meaning of the paper:']
    lines += ["independent noise under any sampling. Run the commands in a checkout.", ""]
    for word in STATUSES:
        group = [entry for entry in own if entry.verdict == word]
        if not group:
            continue
        lines += [f"## {word}", "", f"{WORDS[word][0].upper()}{WORDS[word][1:]}.", ""]
        for entry in group:
            lines += [*_entry(entry, outcomes.get(entry.id)), ""]
    return lines


def _entry(entry: Statement, outcome: Outcome | None) -> list[str]:
    lines = [f"**{_plain(entry.statement)}** {_plain(entry.location)}. (`{entry.id}`)", ""]
    if entry.remark:
        lines += [_plain(entry.remark), ""]
    lines += ["<details><summary>as printed, and how it was checked</summary>", ""]
    lines.append(f"- printed: {_plain(entry.printed)}")
    lines.append(f"- hypotheses: {_plain(entry.hypotheses)}")
    if entry.garbled:
        lines.append("- the text that we have is damaged here; the formula is our reading of it")
    if outcome is None:
        lines.append("- not run yet")
    else:
        lines.append(f"- method: {_plain(outcome['method'])}")
        lines.append(f"- cases: {outcome['cases']}, worst margin: {outcome['margin']}")
        if outcome["note"]:
            lines.append(f"- found: {_plain(outcome['note'])}")
    lines += [f"- again: `python -m verification --id {entry.id}`", "", "</details>"]
    return lines


def _errata(entries: dict[str, Statement], papers: dict[str, Paper]) -> list[str]:
    lines = [_ERRATA]
    for heading, word, number in _SECTIONS:
        group = [
            entry
            for entry in entries.values()
            if entry.verdict == word and number in {None, entry.changes_number}
        ]
        if not group:
            continue
        lines += [f"### {heading}", "", f"{WORDS[word][0].upper()}{WORDS[word][1:]}.", ""]
        for name in dict.fromkeys(entry.paper for entry in group):
            lines += [f"#### {_plain(papers[name].title)}", ""]
            for entry in group:
                if entry.paper == name:
                    lines += [*_erratum(entry), ""]
    return lines


def _erratum(entry: Statement) -> list[str]:
    lines = [f"- **{entry.id}** ({_plain(entry.location)}). {_plain(entry.statement)}"]
    if entry.printed:
        lines.append(f"  *Printed:* {_plain(entry.printed)}")
    return [*lines, f"  *Right:* {_plain(entry.remark)} `python -m verification --id {entry.id}`"]


def _plain(text: str) -> str:
    """One line in which only formulas between dollars and code between backticks are Markdown."""
    parts = _KEPT.split(" ".join(text.split()))
    for place in range(0, len(parts), 2):
        for character in "\\*_<[$~|":
            parts[place] = parts[place].replace(character, "\\" + character)
    return "".join(parts)
