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

dpmech is based on five papers, and we are grateful to their authors. These pages contain a check for each
statement of the papers that dpmech uses or builds on. We judge a statement as its authors would after
rereading it: under the printed conditions, and in the reading that is consistent with the rest of the
paper. If we disagree, we give the location, the printed form and the form that we believe to be right. We
read plain-text conversions of preprints and of one course-project report, so some of the errors may come
from the conversion, and some will be our own. Corrections are welcome.

The statements are in `verification/registry/`, one TOML file for each paper. In a checkout of the
repository, `python -m verification` runs all but the longest checks, in about a minute; with `--full` it
runs all checks, and with `--id cgd.thm1` a single one. With `--write` it also writes these pages; checks
that were not run keep their latest result. In the statements, "DP-SGD" means independent noise under any
sampling, as in the papers. Elsewhere in this documentation, it means independent noise under Poisson
sampling.
"""

_HEADLINES = """## Headline results

The table lists the headline results of each paper, with the commands that recompute them in a checkout. In
the column *here*, computed numbers are rounded up, and measured numbers to the nearest digit; eps and sigma
are certified. "Same command" refers to the row above. `python -m verification.tables --help` lists the
tables. They show every printed cell next to ours, and the reason for any difference. The last column names
the statement with the details. `dpmech audit --published dp_muon` also works without a checkout
([](risk.md#published-claims)). The folder `docs/examples/papers/` contains the settings of the papers' runs
as plans. For example, `dpmech compare --plan docs/examples/papers/muon_e2e.toml` calibrates the noise of one
of them.
"""

_WHERE = """### Where to find each result

We do not reproduce the accuracies, BLEU scores or run times of the authors' models, because this would
require those models, data and machines. For every other result, the table names a page or a command.
"Commands above" refers to the table of headline results.
"""

# The papers' names in the tables.
_NAMES = {
    "lambda_cgd": "DP-lambda-CGD",
    "muon": "DP-Muon",
    "noise_share": "noise share",
    "sde": "SDE",
    "spectral": "spectral denoising",
}

_ERRATA = """## Errata of the papers

The most consequential errata come first: statements that fail under their own hypotheses, then misprints,
conditions that are not printed, steps of proofs, numbers that we could not recompute, and wording. For each
statement, the linked section of the paper's page gives the form that we believe to be right, the printed form
and the check. These errata do not reduce the value of the papers: dpmech is built on their results, with
these corrections.
"""

_PAPER_HEAD = """\
This page lists our verdicts on this paper's statements; [Verification](verification.md) explains them. Each
entry gives the statement in our words, its location, its id and, where needed, the right form or the reason
for the verdict. The details give the printed form, the hypotheses, the method of the check, the number of
cases, and the largest deviation in the unit that the method names. A negative deviation means that an
inequality holds strictly. In the statements, "DP-SGD" means independent noise under any sampling, as in the
paper.
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
        link = f"[{_NAMES.get(name, name)}](verification_{name}.md)"
        lines.append(f"| {_plain(papers[name].title)} | {counts[name]} | {link} |")
    lines += ["", "```{toctree}", ":hidden:", ""]
    lines += [f"verification_{name}" for name in names]
    return [*lines, "```"]


def _paper_page(own: list[Statement], paper: Paper, outcomes: dict[str, Outcome]) -> list[str]:
    lines = [f"# {_plain(paper.title)}", ""]
    lines += [f"{_plain(', '.join(paper.authors))} ({paper.year}). {_plain(paper.source)}.", ""]
    lines += [_PAPER_HEAD, _plain(paper.symbols), ""]
    for word in STATUSES:
        group = [entry for entry in own if entry.verdict == word]
        if not group:
            continue
        lines += [f"## {word}", "", f"{WORDS[word]}.", ""]
        for entry in group:
            lines += [*_entry(entry, outcomes.get(entry.id)), ""]
    return lines


def _entry(entry: Statement, outcome: Outcome | None) -> list[str]:
    location = entry.location[0].upper() + entry.location[1:]
    lines = [f"**{_plain(entry.statement)}** {_plain(location)}. (`{entry.id}`)", ""]
    if entry.remark:
        lines += [_plain(entry.remark), ""]
    lines += ["<details><summary>Details</summary>", ""]
    lines.append(f"- Printed: {_plain(entry.printed)}")
    if entry.hypotheses != "none":
        lines.append(f"- Hypotheses: {_plain(entry.hypotheses.rstrip('.'))}.")
    if entry.garbled:
        lines.append("- The text that we have is damaged here; the formula is our reading of it.")
    if outcome is None:
        lines.append("- The check has not been run yet.")
    else:
        lines.append(f"- {_plain(outcome['method'])}")
        lines.append(f"- Cases: {outcome['cases']}; largest deviation: {outcome['margin']}")
        if outcome["note"] and (entry.with_note or not entry.remark):
            lines.append(f"- Result: {_plain(outcome['note'])}")
    return [*lines, "", "</details>"]


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
        lines += [f"### {heading}", "", f"{WORDS[word]}.", ""]
        for name in dict.fromkeys(entry.paper for entry in group):
            section = word.lower().replace(",", "").replace(" ", "-")
            lines += [f"[{_plain(papers[name].title)}](verification_{name}.md#{section}):", ""]
            own = [entry for entry in group if entry.paper == name]
            lines += [f"- **{one.id}** ({_plain(one.location)}). {_plain(one.statement)}" for one in own]
            lines.append("")
    return lines


def _plain(text: str) -> str:
    """One line in which only formulas between dollars and code between backticks are Markdown; 5% is 5 %."""
    parts = _KEPT.split(" ".join(text.split()))
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(r"(?<=\d)%", " %", parts[place])
        for character in "\\*_<[$~|":
            parts[place] = parts[place].replace(character, "\\" + character)
    return "".join(parts)
