"""The page of the docs: what came out, and by module the faults that were not refuted."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from verification.faults._corpus import Fault, of_packages
from verification.mutation._modules import ROOT

__all__ = ["PAGE", "write_page"]

# docs/checker.md includes it.
PAGE = ROOT / "verification" / "faults" / "page.md"
HEAD = """## Planted faults

These tests show whether the checker refuses the claims that a faulty library would issue. `python -m
verification.faults` alters the code that issues claims (`engines`, `mechanism` and `numerics`), one place
at a time. It changes signs, numbers and comparisons, as on the page on [mutations](../../docs/mutation.md),
or the result of a statement by 3 %. Other faults are written by hand, such as halved importance weights, a
Gram matrix that is 1 % too small, or a sensitivity without the last participation. A plan is calibrated
with each fault. If sigma decreases by half a per cent or more, the altered library writes the certificate,
and the unaltered checker decides whether its claim is true.

The plans are small, and cover every scheme and method. Most of their sigmas are close to the smallest true
ones, so a sigma that is half a per cent smaller is a false claim. For comparison, the unaltered library
computes its own bounds on delta at that sigma. Runs are repeatable, because the samples of the checker are
seeded. A claim that is not refuted is NOT CHECKED, if the bounds of the checker leave a gap (truncated
batches, negative entries of C), or NO DOCUMENT, if the C in the file does not match its parameters. An
alteration that changes the parameters in the file is not a fault: the claim is then about a different plan.

A run of the whole list writes this page, and fails if one of these claims is PROVED. `--sample N` runs a
random sample of the list, and `--find MINUTES` searches for further faults. Functions that numba compiles
are not altered.
"""


def write_page(path: Path, faults: Sequence[Fault], still_true: Sequence[Fault]) -> None:
    """Write it.

    Args:
        path: of the page.
        faults: of the corpus, with the verdicts of the run at hand.
        still_true: changes whose claims are lower and PROVED.
    """
    text = HEAD + f"\n{_outcome(faults)}\n\n"
    text += "| package | faults | refuted | not refuted | false according to the library |\n"
    text += "|---|---|---|---|---|\n"
    for name, several in of_packages(faults):
        text += f"| {name} | {_counts(several)} |\n"
    text += (
        "\n### Not refuted\n\nEach entry names the altered function, the alteration, the plan, sigma without "
        "and with the fault, and the verdict.\n`verification/faults/corpus.json` contains all faults.\n"
    )
    text += _listed([fault for fault in faults if fault.verdict != "REFUTED"])
    if still_true:
        text += (
            "\n### Lower, but still true\n\nThese alterations also decrease a sigma, but the claim is still "
            "true. Either the method leaves a gap, or the tolerances leave sigma above the smallest value. "
            "The checker PROVED these claims, and the unaltered library does not contradict them.\n"
        )
        text += _listed(still_true)
    path.write_text(text, encoding="utf-8")


def _outcome(faults: Sequence[Fault]) -> str:
    """Whether the checker proved a false claim, in one sentence."""
    proved = sum(fault.verdict == "PROVED" for fault in faults)
    return f"Of the faults in this table, the checker PROVED {proved or 'none'}."


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
    return (
        f"`{change.function or 'the module'}`: {what}. "
        f"{fault.plan}: {fault.sigma:.5g} to {fault.lowered:.5g}. {fault.verdict}."
    )
