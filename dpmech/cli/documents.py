"""What commands print with --json: one document, with the name and the version of its schema."""

import json
import re
from typing import Any

__all__ = ["VERSION", "document", "in_a_log"]

# Of all documents, and in the name of the file of their schema. A field that goes, or means something else,
# makes the next one.
VERSION = 1


def document(command: str, content: dict[str, Any]) -> str:
    """The text of a document.

    Args:
        command: which printed it, such as "calibrate" or "ledger show".
        content: everything but the schema.
    """
    head = {"schema": {"name": f"dpmech {command}", "version": VERSION}}
    return in_a_log(json.dumps(head | content, indent=2, allow_nan=False))


def in_a_log(text: str) -> str:
    """JSON that says the same, and in which the runner of a CI server finds no command.

    Outside of strings no two marks follow each other, and no line begins with two colons.
    """
    return re.sub("#(?=#)", r"\\u0023", text)
