"""What is altered in a formula: signs, factors, exponents, and the conditions between its branches."""

import ast
import copy
import dataclasses
import hashlib
import typing
from collections.abc import Iterator

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
Key = tuple[str, str, str, str, int]
SWAPS = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One alteration of a module.

    Args:
        module: its name below dpmech, dotted.
        function: the function it stands in, dotted; "" for the body of the module.
        line: where.
        lines: the lines of its statement, without the statements inside that; those of the function for a
            default value; none for what is computed at import.
        before: the expression.
        after: what stands there instead.
        count: how many equal alterations stand before it in the same function.
        statement: the text of its statement, without the statements inside that.
        ordinal: how many equal alterations of equal statements stand before it in the same function.
    """

    module: str
    function: str
    line: int
    lines: range
    before: str
    after: str
    count: int
    statement: str
    ordinal: int
    _source: tuple[ast.Module, ast.AST, ast.AST] = dataclasses.field(repr=False, compare=False)

    @property
    def tree(self) -> ast.Module:
        """The altered module."""
        return _replaced(*self._source)

    @property
    def key(self) -> Key:
        """What names it whatever the line."""
        return self.module, self.function, self.before, self.after, self.count

    def rank(self, seed: int) -> str:
        """Where it stands in the draw of a seed, which no change of another statement moves."""
        parts = seed, self.module, self.function, self.statement, self.before, self.after, self.ordinal
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """All alterations of a module's source, in its order."""
    seen: dict[tuple[str, ...], int] = {}
    tree = ast.parse(source)
    even, spans, statements = _even_arguments(tree), _spans(tree), _statements(tree)
    estimates = _estimates(tree)
    for function, node, whole in _expressions(tree, "", in_formula=False):
        for replacement in _replacements(node, whole=whole):
            if id(node) in even and isinstance(replacement, ast.UnaryOp):
                continue
            before, after = ast.unparse(node), ast.unparse(replacement)
            line, lines, statement = getattr(node, "lineno", 0), spans[id(node)], statements[id(node)]
            counts = []
            for name in ((function, before, after), (function, before, after, statement)):
                seen[name] = seen.get(name, -1) + 1
                counts.append(seen[name])
            if id(node) in estimates:
                continue
            yield Mutant(
                *(module, function, line, lines, before, after, counts[0], statement, counts[1]),
                (tree, node, replacement),
            )


def _statements(tree: ast.Module) -> dict[int, str]:
    """For every node the text of its statement, without the statements inside that."""
    owners = ast.stmt | ast.match_case | ast.excepthandler
    texts: dict[int, str] = {}

    def own_text(owner: ast.AST) -> str:
        children = (one for one in ast.iter_child_nodes(owner) if not isinstance(one, owners))
        parts = (ast.unparse(one) or type(one).__name__ for one in children)
        return " ".join((type(owner).__name__, *parts))

    def walk(node: ast.AST, text: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = own_text(child) if isinstance(child, owners) else text
            texts[id(child)] = inner
            walk(child, inner)

    walk(tree, "")
    return texts


def _spans(tree: ast.Module) -> dict[int, range]:
    """For every node the lines whose execution runs it; none where the import does."""
    spans: dict[int, range] = {}

    def walk(node: ast.AST, lines: range, *, called: bool) -> None:
        spans[id(node)] = lines
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                inside = called or isinstance(node, ast.FunctionDef)
                walk(child, _own_lines(child) if inside else range(0), called=inside)
            elif isinstance(node, ast.FunctionDef):
                walk(child, range(node.lineno, (node.end_lineno or node.lineno) + 1), called=called)
            elif isinstance(child, ast.match_case):
                walk(child, range(child.pattern.lineno, child.body[0].lineno), called=called)
            else:
                walk(child, lines, called=called)

    walk(tree, range(0), called=False)
    return spans


def _own_lines(statement: ast.stmt) -> range:
    inner = [child.lineno for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
    if isinstance(statement, ast.Match):
        inner = [case.pattern.lineno for case in statement.cases]
    end = (statement.end_lineno or statement.lineno) + 1
    return range(statement.lineno, max(min([end, *inner]), statement.lineno + 1))


def _even_arguments(tree: ast.Module) -> set[int]:
    """Nodes under a square, an absolute value or a hypotenuse, whose sign is nothing."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {
            "abs",
            "hypot",
            "square",
        }:
            found |= {id(argument) for argument in node.args}
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Pow)
            and ast.unparse(node.right) in {"2", "4"}
        ):
            found.add(id(node.left))
    return found


def _estimates(tree: ast.Module) -> set[int]:
    """Nodes that say what work is going to cost: they steer what is started, and no result rests on them."""
    calls = (one for one in ast.walk(tree) if isinstance(one, ast.Call) and ast.unparse(one.func) == "spend")
    return {id(node) for call in calls for node in ast.walk(call)}


def _expressions(
    node: ast.AST, function: str, *, in_formula: bool
) -> Iterator[tuple[str, ast.expr | ast.AugAssign, bool]]:
    """Nodes that may be altered, with their function and whether each is a whole formula."""
    for field, value in ast.iter_fields(node):
        # Annotations and messages of errors are no formulas.
        if field in {"annotation", "returns", "decorator_list", "exc"} or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            inner = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}".lstrip(".")
            if isinstance(child, ast.expr | ast.AugAssign):
                yield inner, child, isinstance(child, ast.BinOp) and not in_formula
            arithmetic = isinstance(child, ast.BinOp | ast.UnaryOp)
            yield from _expressions(child, inner, in_formula=arithmetic)


def _replacements(node: ast.expr | ast.AugAssign, *, whole: bool) -> Iterator[ast.expr | ast.AugAssign]:
    match node:
        case ast.Constant(value=bool()):
            return
        case ast.Constant(value=int() | float() as value):
            yield from (ast.Constant(new) for new in _numbers(value))
        case ast.UnaryOp(op=ast.USub()):
            yield node.operand
        case ast.BinOp():
            yield from _operations(node, whole=whole)
        case ast.AugAssign(value=ast.JoinedStr() | ast.Constant(value=str())):
            return  # words are joined, not added
        case ast.AugAssign() if type(node.op) in OPERATORS:
            yield ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            yield ast.Compare(node.left, [COMPARISONS[type(operator)]()], node.comparators)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            if name in SWAPS:
                yield ast.Call(_renamed(node.func, SWAPS[name]), node.args, node.keywords)
            if name in {"sqrt", "square", "hypot"} and len(node.args) == 1:
                yield node.args[0]


def _numbers(value: float) -> list[float]:
    """Twice the number, and one more where that is another; 1 for 0."""
    if value == 0:
        return [type(value)(1)]
    return sorted({2 * value, value + 1} - {value})


def _operations(node: ast.BinOp, *, whole: bool) -> Iterator[ast.expr]:
    if type(node.op) in OPERATORS:
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    if isinstance(node.op, ast.Pow):
        yield ast.BinOp(node.left, ast.Mult(), node.right)
        if not isinstance(node.right, ast.Constant):
            yield ast.BinOp(node.left, ast.Pow(), ast.BinOp(node.right, ast.Add(), ast.Constant(1)))
    if whole and not isinstance(node.op, ast.BitAnd | ast.BitOr):
        yield ast.UnaryOp(ast.USub(), node)
        yield ast.BinOp(ast.Constant(2.0), ast.Mult(), node)


def _renamed(function: ast.expr, name: str) -> ast.expr:
    if isinstance(function, ast.Attribute):
        return ast.Attribute(function.value, name, function.ctx)
    return ast.Name(name, ast.Load())


def _replaced(tree: ast.Module, node: ast.AST, replacement: ast.AST) -> ast.Module:
    """A copy of the module with one node exchanged."""

    class Exchange(ast.NodeTransformer):
        def visit(self, found: ast.AST) -> ast.AST:
            if found is node:
                return copy.deepcopy(replacement)
            return self.generic_visit(found)

    # The transformer works in place: it gets a copy whose nodes are told apart by the memo.
    memo: dict[int, object] = {}
    twin = copy.deepcopy(tree, memo)
    node = memo[id(node)]  # type: ignore[assignment]
    return ast.fix_missing_locations(typing.cast(ast.Module, Exchange().visit(twin)))
