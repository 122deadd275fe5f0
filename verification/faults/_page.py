"""The page of the docs: what came out, and every fault by module."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from verification.faults._corpus import Fault, of_packages
from verification.mutation._modules import ROOT

__all__ = ["PAGE", "write_page"]

# docs/checker.md includes it.
PAGE = ROOT / "verification" / "faults" / "page.md"
HEAD = """## Planted faults

Does the checker refuse what a fault of the library would have it accept?
`python -m verification.faults` alters the code that issues claims (`engines`, `mechanism` and
`numerics`), one place at a time: a sign, a number, a comparison, as on the page on
[mutations](../../docs/mutation.md); the result of a statement by 3 %; or by hand: importance weights that are
halved, a Gram matrix 1 % too small, a sensitivity that misses the last participation. With each it
calibrates a plan. Where sigma falls by half a per cent or more, the altered library writes the
certificate, and the checker, which is not altered, decides it.

Plans are small, of every scheme and method, and most sigmas are close to the smallest true ones, so
that half a per cent less is a false claim; the library as it is gives a second opinion, by its own
bounds on delta at that sigma. The checker draws from a seed here, so that a run repeats. A claim that
it does not refute is marked: NOT CHECKED, where its own bounds leave a gap (batches of one size,
negative entries of C), or NO DOCUMENT, where the file states another C than its parameters are those
of. An alteration that changes the parameters that the file states, so that it is about another plan, is
none.

A run of the whole list fails if one of these claims is PROVED, and writes this page; `--sample N` draws
from it, and `--find MINUTES` looks for more. Functions that numba compiles are not altered.
"""


def write_page(path: Path, faults: Sequence[Fault], still_true: Sequence[Fault]) -> None:
    """Write it.

    Args:
        path: of the page.
        faults: of the corpus, with the verdicts of the run at hand.
        still_true: changes whose claims are lower and PROVED.
    """
    text = HEAD + f"\n{_outcome(faults)}\n\n"
    text += "| package | faults | refuted | not proved | false by the library too |\n|---|---|---|---|---|\n"
    for name, several in of_packages(faults):
        text += f"| {name} | {_counts(several)} |\n"
    text += "\n### The faults\n"
    text += _listed(faults)
    if still_true:
        text += (
            "\n### Lower, but still true\n\nThese alterations lower a sigma as well, but one of "
            "a method that leaves a gap, or one that tolerances leave above the smallest: what is claimed is "
            "still true, the checker PROVED it, and the library as it is does not say otherwise.\n"
        )
        text += _listed(still_true)
    path.write_text(text, encoding="utf-8")


def _outcome(faults: Sequence[Fault]) -> str:
    """Whether the checker proved a false claim, in one sentence."""
    proved = sum(fault.verdict == "PROVED" for fault in faults)
    return f"Of the faults in this table the checker PROVED {proved or 'none'}."


def _counts(faults: Sequence[Fault]) -> str:
    refuted = sum(fault.verdict == "REFUTED" for fault in faults)
    false = sum(fault.library == "false" for fault in faults)
    return f"{len(faults)} | {refuted} | {len(faults) - refuted} | {false}"


def _listed(faults: Sequence[Fault]) -> str:
    text = ""
    for module, several in groupby(sorted(faults), key=lambda fault: fault.change.module):
        text += f"\n#### `{module}`\n\n"
        text += "".join(f"- {_words(fault)}\n" for fault in several)
    return text


def _words(fault: Fault) -> str:
    change = fault.change
    what = change.by_hand or f"`{change.before}` to `{change.after}`"
    verdict = "" if fault.verdict == "REFUTED" else f" {fault.verdict}."
    return (
        f"`{change.function or 'the module'}`: {what}. "
        f"{fault.plan}: {fault.sigma:.5g} to {fault.lowered:.5g}.{verdict}"
    )
