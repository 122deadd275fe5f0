"""The section of a model card that says what was protected in training, and by which record."""

from pathlib import Path

from dpmech.certificates import RunRecord
from dpmech.files import write_bytes
from dpmech.mechanism import Adjacency
from dpmech.numerics import typed, up

CARD = "README.md"
_BEGIN, _END = "<!-- dpmech: begin -->", "<!-- dpmech: end -->"
_NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "whether its data were in the training set at all (add-remove)",
    Adjacency.ZERO_OUT: "whether its data contributed anything, where their number is public (zero-out)",
    Adjacency.REPLACE_ONE: "which of any two values they have, where their number is public (replace-one)",
}


def section(record: RunRecord, name: str) -> str:
    """The section, in Markdown; `name` is the file of the record, next to the card."""
    own = record.certificate
    return "\n".join(
        (
            _BEGIN,
            "## Differential privacy",
            "",
            f"Trained with differential privacy, eps {up(record.executed.upper)} at delta "
            f"{typed(own.budget.delta)}.",
            "",
            f"- **Guarantee**: {record.headline}.",
            f"- **Protected** is one {own.unit.value} of the training data: {_NEIGHBOURS[own.adjacency]}.",
            "- **Not covered** are the weights before this training and the data that they come from, "
            "evaluations, and choices made by other runs on the same data (a ledger adds these up).",
            f"- **Record**: [`{name}`]({name}), checksum `{record.to_dict()['checksum']}`. "
            f"`dpmech verify {name}` recomputes it.",
            _END,
            "",
        )
    )


def write_section(folder: Path, record: RunRecord, name: str) -> None:
    """Write the section to the model card of a folder: in place of an earlier one, else at its end."""
    card = folder / CARD
    before = card.read_text(encoding="utf-8") if card.exists() else f"# {folder.name}\n"
    head, begin, rest = before.partition(_BEGIN)
    tail = rest.partition(_END)[2].lstrip("\n") if begin else ""
    text = f"{head.rstrip()}\n\n{section(record, name)}{tail}"
    write_bytes("the model card", card, text.encode())
