"""Results that are three per cent off: faults that break nothing, and that only the number tells.

The alterations of `verification.mutation` are coarse, so that tests see them, and most of them raise an error
or a sigma. Here a statement `return x` or `y = x` gets a factor, either way.
"""

import ast
from collections import Counter
from collections.abc import Iterator

from verification.mutation._mutants import Mutant

__all__ = ["scaled"]

_FACTORS = (0.97, 1.03)


def scaled(module: str, source: str) -> Iterator[Mutant]:
    """All such alterations of a module's source, in its order.

    Args:
        module: its name below dpmech, dotted.
        source: its text.
    """
    tree = ast.parse(source)
    seen: Counter[tuple[str, str]] = Counter()
    for function, statement in _statements(tree, ""):
        value = statement.value
        if not isinstance(value, ast.BinOp | ast.Call) and not isinstance(statement, ast.Return):
            continue
        if value is None or isinstance(value, ast.Constant | ast.Tuple | ast.Compare | ast.BoolOp):
            continue
        before = ast.unparse(statement)
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        for factor in _FACTORS:
            replacement = ast.BinOp(ast.Constant(factor), ast.Mult(), value)
            after = f"{before.removesuffix(ast.unparse(value))}{ast.unparse(replacement)}"
            counts = [seen[function, before]] * 2
            yield Mutant(
                *(module, function, statement.lineno, lines, before, after, counts[0], before, counts[1]),
                (tree, value, replacement),
            )
        seen[function, before] += 1


def _statements(
    node: ast.AST, function: str
) -> Iterator[tuple[str, ast.Return | ast.Assign | ast.AnnAssign]]:
    """Statements with a value, inside functions."""
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}".lstrip(".")
        body = isinstance(node, ast.FunctionDef | ast.If | ast.For | ast.While | ast.With | ast.Try)
        if function and body and isinstance(child, ast.Return | ast.Assign | ast.AnnAssign):
            yield function, child
        yield from _statements(child, inner)
