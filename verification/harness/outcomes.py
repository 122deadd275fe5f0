"""What the latest run of each check found, kept so that the pages need no check to be run again."""

import json
from pathlib import Path

from verification.harness.verdict import Check, Verdict

PATH = Path(__file__).parents[1] / "outcomes.json"
# An outcome: status, method, cases, margin and note, as text.
Outcome = dict[str, str]


def load_outcomes(path: Path = PATH) -> dict[str, Outcome]:
    """The outcomes by id; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save_outcomes(path: Path, known: set[str], results: list[tuple[Check, Verdict]]) -> dict[str, Outcome]:
    """Put the results beside the outcomes on file, without those of ids that are not known any more.

    Raises:
        ValueError: if a check has no registry entry.
    """
    if unknown := [check.id for check, _ in results if check.id not in known]:
        raise ValueError("no registry entry for " + ", ".join(unknown))
    outcomes = {name: one for name, one in load_outcomes(path).items() if name in known}
    for check, verdict in results:
        outcomes[check.id] = {
            "status": verdict.status,
            "method": verdict.method,
            "cases": str(verdict.cases),
            "margin": _margin(verdict.worst_margin),
            "note": verdict.note,
        }
    ordered = dict(sorted(outcomes.items()))
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return ordered


def _margin(value: float) -> str:
    # Rounding differs between machines; the pages should not.
    return "below 1e-12" if abs(value) < 1e-12 else f"{value:.2g}"
