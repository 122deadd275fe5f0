"""docs/verification.md: one row a statement, written from what was run."""

from collections import Counter
from pathlib import Path

from verification.harness.registry import Statement
from verification.harness.verdict import STATUSES, Check, Verdict

TITLES = {
    "noise_share": "Noise share: an optimisation view of private fine-tuning (`ov`)",
    "sde": "DP-SGD and DP-SignSGD as stochastic differential equations (`sde`)",
    "spectral": "Spectral denoising of private gradients (`rmt`)",
    "lambda_cgd": "DP-lambda-CGD (`cgd`)",
    "muon": "DP-Muon (`muon`)",
}

_HEAD = """# Verification

What the papers behind dpmech state, and what running code says about it. The statements stand in
`verification/registry/`, one TOML file a paper, with the errata. `python -m verification` runs all but the
eight longest checks in about a minute of processor time, `--full --skip cgd.tab4_amp` in about four; all of
the amplified Table 4 (`--full`) takes about twenty more. Each run writes this page; the rows of checks that
it left out are those of the latest run that had them. "DP-SGD" in a statement is the paper's word:
independent noise, whatever the sampling; elsewhere in this documentation it is under Poisson sampling.

- **CONFIRMED**: true as stated (a sharper form may be known).
- **CONDITIONAL**: true under the condition given.
- **REFUTED**: false as printed; the counterexample is given, the corrected form stands in
  [errata](errata.md).
- **UNVERIFIABLE**: a measurement of the authors; only its arithmetic was checked.

"""

_NOT_RUN = "not run yet"


def write_page(path: Path, entries: dict[str, Statement], results: list[tuple[Check, Verdict]]) -> None:
    """Write the page; a statement that was not run keeps the row that the page has for it.

    Raises:
        ValueError: if a check has no registry entry.
    """
    unknown = [check.id for check, _ in results if check.id not in entries]
    if unknown:
        raise ValueError("no registry entry for " + ", ".join(unknown))
    rows = _rows_of(path)
    for check, verdict in results:
        rows[check.id] = _row(entries[check.id], verdict)
    counts = Counter(_status(rows[name]) for name in entries if name in rows)
    lines = [_HEAD, "| status | statements |", "|---|---|"]
    lines += [f"| {status} | {counts[status]} |" for status in STATUSES]
    lines.append(f"| all | {len(entries)} |")
    for paper in dict.fromkeys(entry.paper for entry in entries.values()):
        lines += [
            "",
            f"## {TITLES.get(paper, paper)}",
            "",
            "| id | source | statement | status | method | cases | worst margin | note |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [rows.get(entry.id, _row(entry, None)) for entry in entries.values() if entry.paper == paper]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rows_of(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {
        line.split("`")[1]: line for line in lines if line.startswith("| `") and _status(line) != _NOT_RUN
    }


def _row(entry: Statement, verdict: Verdict | None) -> str:
    outcome = (
        (_NOT_RUN, "", "", "", "")
        if verdict is None
        else (
            verdict.status,
            verdict.method,
            str(verdict.cases),
            _margin(verdict.worst_margin),
            verdict.note,
        )
    )
    cells = (f"`{entry.id}`", entry.source, entry.statement, *outcome)
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _margin(value: float) -> str:
    # Rounding differs between machines; the page should not.
    return "below 1e-12" if abs(value) < 1e-12 else f"{value:.2g}"


def _plain(cell: str) -> str:
    """One line that Markdown takes as text: no column break, no emphasis, no HTML."""
    text = " ".join(cell.split())
    if text.startswith("`"):
        return text
    for character in "\\*_<[$~":
        text = text.replace(character, "\\" + character)
    return text.replace("|", "&#124;")


def _status(row: str) -> str:
    return row.split(" | ")[3]
