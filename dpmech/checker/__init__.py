"""A small program that decides certificates, and shares nothing with what it checks.

It imports the standard library, numpy and python-flint. Read it in this order, with docs/checker.md, which
has the theorems and their proofs:

1. `documents`: a file to plain data, or one sentence why not.
2. `claims`: plain data to a claim.
3. `strategies`, `sensitivity`: parameters to C, and C to a sensitivity.
4. `gaussian`: what is not sampled, in closed form.
5. `losses`, `pairs`: sampling release by release; lattices and powers of polynomials.
6. `components`, `mixtures`, `confidence`: random allocations; draws and bets.
7. `decide`: which of these covers a claim, and the verdict. `__main__`: the command.

Of every line ask: what wrong claim would this accept?
"""

from .decide import Kind, Verdict, check_file, check_text
from .documents import BadDocument

__all__ = ["BadDocument", "Kind", "Verdict", "check_file", "check_text"]
