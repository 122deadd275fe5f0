"""Runs the blocks of a page of the documentation as printed, and holds what they are said to give.

Blocks of Python (and doctests, `pycon`) run in the order of the page, in one namespace and one folder;
commands of `dpmech` run in the same folder. What is checked:

- a comment that begins with a number, or with True or False, states the value of the expression on its line
  (of several, where the expression is a tuple; the upper end, where it is `Bounds`), or what it prints;
  `# .name = number` states an attribute of what the line assigns to;
- a block of text right behind one of Python states what that prints;
- what follows a command in a block of console states its output.

Numbers are compared to the digits shown: one unit of the last digit. A comment of HTML on the line above a
block says what is special about it, as in `<!-- block: slow, drawn -->`:

- `fragment`: it is not run (a file that is shown, commands of other tools);
- `slow`: only slow tests run it, and no quick block needs it;
- `drawn`: its numbers rest on random draws, and may differ by 1.2 %;
- `fits`: its numbers are found by searches, and may differ by 0.2 %;
- `any`: it runs, and what it prints is an example of many;
- `exit=2`: a command ends with this code.
"""

import ast
import contextlib
import dataclasses
import doctest
import glob
import io
import os
import pathlib
import re
import runpy
import shlex
import sys
import tokenize
from unittest import mock

import dpmech as dm
from tests.support.command_line import run
from tests.support.pages import ROOT, name

FENCE = re.compile(
    r"(?:^<!-- block: (?P<marks>[^>]*?) -->\n)?"
    r"^```(?P<kind>python|pycon|console|text|sh)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARKS = {"fragment", "slow", "drawn", "fits", "any", "exit=1", "exit=2"}
NUMBER = r"-?(?<![\w.])\d[\d_]*\.?\d*(?:e[-+]?\d+)?(?![\w.]*\w)"
VALUE = rf"(?:True|False|{NUMBER})"
CLAIM = re.compile(rf"#\s*(?:\.(?P<name>\w+) = )?{VALUE}(?=$|[\s:;,.)])")
TOLERANCE = {"drawn": 0.012, "fits": 0.002}


@dataclasses.dataclass(frozen=True)
class Block:
    """What stands between two fences.

    Args:
        line: of its first line of code, from 1.
        kind: the language of the fence.
        code: what stands in it.
        marks: what the comment above it says.
        stated: what a block of Python is said to print, or None where the page says nothing.
    """

    line: int
    kind: str
    code: str
    marks: frozenset[str]
    stated: str | None = None

    @property
    def rel(self):
        """How far its numbers may be off, besides the last digit."""
        return max((TOLERANCE.get(mark, 0.0) for mark in self.marks), default=0.0)


def blocks(page):
    """The blocks of a page that can be run, in order."""
    return blocks_of(page.read_text(encoding="utf-8"))


def blocks_of(text):
    found, end = [], -1
    for match in FENCE.finditer(text):
        marks = frozenset(filter(None, (match["marks"] or "").replace(",", " ").split()))
        assert marks <= MARKS, f"{sorted(marks - MARKS)} is no mark of a block"
        kind, code = match["kind"], match["code"]
        if kind == "text":
            if found and found[-1].kind == "python" and not text[end : match.start()].strip():
                found[-1] = dataclasses.replace(found[-1], stated=code)
        else:
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(line, "console" if kind == "sh" else kind, code, marks))
        end = match.end()
    return [block for block in found if "fragment" not in block.marks]


def parts(page):
    """The blocks of a page by section, for sections that begin with `import dpmech as dm`; others go on.

    Returns:
        By heading, or the name of the page, the blocks that run after each other.
    """
    text = page.read_text(encoding="utf-8")
    fences = [match.span() for match in FENCE.finditer(text)]
    headings = [
        (text.count("\n", 0, match.start()) + 1, match[1])
        for match in re.finditer(r"^## (.+)$", text, re.MULTILINE)
        if not any(start < match.start() < end for start, end in fences)
    ]
    found, at, seen = {}, name(page), name(page)
    for block in blocks(page):
        heading = max((one for one in headings if one[0] < block.line), default=(0, name(page)))[1]
        if heading != seen and "import dpmech as dm\n" in block.code:
            at = heading
        seen = heading
        found.setdefault(at, []).append(block)
    return found


def run_blocks(chosen, page):
    names = {"__name__": "__main__"}
    with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        for block in chosen:
            {"python": _python, "pycon": _doctest, "console": _console}[block.kind](block, page, names)


def _python(block, page, names):
    claims = {}
    for token in tokenize.generate_tokens(io.StringIO(block.code).readline):
        if token.type == tokenize.COMMENT and not token.line.lstrip().startswith("#"):
            claims[token.start[0]] = token.string
    everything = io.StringIO()
    for node in ast.parse(block.code).body:
        claim = CLAIM.match(claims.get(node.end_lineno) or claims.get(node.lineno, ""))
        ast.increment_lineno(node, block.line - 1)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if isinstance(node, ast.Expr):
                value = eval(compile(ast.Expression(node.value), page, "eval"), names)
            else:
                exec(compile(ast.Module([node], []), page, "exec"), names)
                value = names.get(getattr(getattr(node, "targets", [None])[0], "id", None))
        everything.write(printed.getvalue())
        if claim:
            if claim["name"]:
                value = getattr(value, claim["name"])
            where = f"{page}:{node.end_lineno}"
            check_values(printed.getvalue() or value, claim.string, block.rel, where)
    if block.stated is not None and "any" not in block.marks:
        check_text(everything.getvalue(), block.stated, block.rel, f"{page}:{block.line}")


def check_values(found, stated, rel, where):
    """Values, or printed text, against the values that a comment states."""
    found = tuple(re.findall(VALUE, found)) if isinstance(found, str) else found
    found = found if isinstance(found, tuple) else (found,)
    said = re.findall(VALUE, stated)[: len(found)]  # what is said besides is no value of this line
    assert len(found) == len(said) > 0, f"{where}: {found} is not {stated}"
    for one, text in zip(found, said, strict=True):
        value = one.upper if isinstance(one, dm.Bounds) else one
        if text in {"True", "False"}:
            assert str(value) == text, f"{where}: {value} is not {text}"
        elif isinstance(value, int):
            assert value == int(text.replace("_", "")), f"{where}: {value} is not {text}"
        else:
            assert close(float(value), text, rel), f"{where}: {value} is not {text}"


def close(value, text, rel):
    """Whether a number is the one that a text shows, to its last digit (rounded either way)."""
    mantissa, _, exponent = text.replace("_", "").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    stated = float(text.replace("_", ""))
    return abs(value - stated) <= max(unit * (1.0 + 1e-9), rel * abs(stated))


def check_text(found, stated, rel, where):
    """Printed text against what a page states: words alike, numbers to the digits shown."""
    ones, others = without_times(found), without_times(stated)
    if others and others[-1] == "...":  # and so on
        others.pop()
        ones = ones[: len(others)]
    assert [re.sub(NUMBER, "#", one) for one in ones] == [re.sub(NUMBER, "#", one) for one in others], where
    for one, other in zip(ones, others, strict=True):
        for value, text in zip(re.findall(NUMBER, one), re.findall(NUMBER, other), strict=True):
            assert close(float(value.replace("_", "")), text, rel), f"{where}: {one!r} is not {other!r}"


def without_times(text):
    """Lines as words, the column and the row of seconds left out."""
    lines, column = [], None
    for line in text.strip().splitlines():
        cells = re.split(r"[│┃]", line)
        if len(cells) < 3:
            column = column if line.startswith("┡") else None
        elif "seconds" in line:
            names = [cell.strip() for cell in cells]
            if line.startswith("│"):
                continue
            column = names.index("seconds")
        elif column is not None:
            cells[column] = ""
        lines.append(" ".join(" ".join(cells).split()))
    return lines


def _doctest(block, page, names):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    test = doctest.DocTestParser().get_doctest(block.code, names, page, page, block.line - 1)
    test.globs = names
    told = io.StringIO()
    failed = doctest.DocTestRunner(optionflags=flags).run(test, out=told.write, clear_globs=False).failed
    assert not failed, told.getvalue()


def _console(block, page, names):
    code = next((int(mark[-1]) for mark in block.marks if mark.startswith("exit=")), 0)
    text = block.code if "$ " in block.code else re.sub(r"^(?=\S)", "$ ", block.code, flags=re.MULTILINE)
    for call, stated in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        words = shlex.split(call.replace("\\\n", ""), comments=True)
        words = [name for word in words for name in (sorted(glob.glob(word)) if "*" in word else [word])]
        where = f"{page}:{block.line}: {call}"
        if words[0] == "dpmech":
            result = run(*words[1:])
            assert result.exit_code == code, f"{where}\n{result.output}"
            found = result.stdout + (result.stderr if not result.stdout else "")
        else:
            assert words[0] == "python", f"{where}: neither dpmech nor python"
            found = _script(words[1:])
        if stated and "any" not in block.marks:
            check_text(found, stated, block.rel, where)


def _script(words):
    """What one of the examples prints that is called by the name of its file."""
    script = ROOT / "docs" / "examples" / pathlib.Path(words[0]).name
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.object(sys, "argv", [str(script), *words[1:]]):
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()
