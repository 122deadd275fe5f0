"""What commands print with --json: one document, with the name and the version of its schema."""

import json
from typing import Any

__all__ = ["VERSION", "document"]

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
    return json.dumps(head | content, indent=2, allow_nan=False)
