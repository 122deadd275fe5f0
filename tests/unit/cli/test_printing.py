"""What is printed: readable at 80 columns, in a pipe, without colour; progress and notes out of the way."""

import io
import os
import re
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dpmech.cli.printing import Column, Row, emit, progress_bar, shown, signed_percent, stacked, width
from tests.support.command_line import BUDGET, SIZES, done
from tests.support.quick_cases import slow_but

PLAN = (*SIZES, "--sampling", "min-sep", *BUDGET)
TABLES = {
    "calibrate": ("calibrate", "--strategy", "lambda-cgd", "--lam", "0.9", *PLAN),
    "compare": (
        *("compare", "--strategies", "identity,lambda-cgd:lam=0.9,blt:decays=0.9/0.5:scales=0.2/0.1"),
        *(*SIZES, *BUDGET, "--sampling", "min-sep,epochs,poisson"),
    ),
    "optimize": ("optimize", *PLAN, "--families", "lambda-cgd,bandmf:bands=4:column-normalized"),
}


@pytest.mark.parametrize(
    ("name", "columns"),
    slow_but([("calibrate", 60), ("calibrate", 80), ("compare", 80), ("optimize", 80)], 0, 2),
)
def test_nothing_is_wider_than_the_reader_and_nothing_is_cut(name, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = done(*TABLES[name]).stdout
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    monkeypatch.setenv("COLUMNS", "500")
    whole = done(*TABLES[name]).stdout
    numbers = re.compile(r"(?<![\w.])\d+\.\d{3,}\b(?!\d)")
    seen = set(numbers.findall(re.sub(r"[│\s]+", " ", text)))
    assert set(numbers.findall(re.sub(r"seconds[^│]*│[^│]*│", "", whole))) <= seen | timed(whole)


def timed(text):
    """Whatever changes from run to run: seconds, in their column."""
    return {cell.strip() for line in text.splitlines() for cell in line.split("│") if "." in cell} & {
        cell for cell in re.findall(r"\b\d+\.\d{1,3}\b", text)
    }


def printed(parts, columns):
    target = io.StringIO()
    console = Console(width=columns, file=target)
    for part in parts:
        console.print(part)
    return target.getvalue()


cells = st.text(st.characters(categories=["L", "N"], max_codepoint=0x24F), min_size=1, max_size=20)


@given(st.lists(cells, min_size=1, max_size=5), st.lists(cells, min_size=3, max_size=9), st.integers(60, 200))
def test_every_cell_stands_somewhere(names, others, columns):
    headers = [Column("name", "name", fixed=True)]
    headers += [Column(str(index), f"c{index}", text=index % 3 == 0) for index in range(len(others))]
    rows = [Row({"name": name, **{str(index): cell for index, cell in enumerate(others)}}) for name in names]
    text = printed(stacked(headers, rows, columns), columns)
    assert max(map(len, text.splitlines())) <= columns
    for cell in (*names, *others):
        assert cell in text


def test_what_is_too_wide_goes_on_below():
    columns = [
        Column("a", "first", fixed=True),
        Column("b", "second", fixed=True),
        *(Column(f"c{number}", f"column {number}") for number in range(4)),
        Column("why", "reason", text=True),
    ]
    numbers = {f"c{number}": "1" for number in range(4)}
    rows = [
        Row(numbers | {"a": "x", "b": "y", "why": "short"}),
        Row(numbers | {"a": "z", "b": "y", "why": "long, and longer than that"}),
        Row(numbers | {"a": "w", "b": "y", "why": "short"}),
    ]
    text = printed(stacked(columns, rows, 44), 44)
    assert [line for line in text.splitlines() if "first" in line] == [
        "┃ first ┃ second ┃ column 0 ┃ column 1 ┃",
        "┃ first ┃ column 2 ┃ column 3 ┃",
    ]
    assert text.splitlines()[-2:] == [
        "reason of z: long, and longer than that",
        "reason of all others: short",
    ]
    # Rows that the first column does not tell apart bear both names.
    twice = [*rows, Row(numbers | {"a": "x", "b": "v", "why": ""})]
    text = printed(stacked(columns, twice, 44), 44)
    assert text.count("┃ first ┃ second ┃") == 2
    assert text.splitlines()[-1] == "reason of x under y, w under y: short"
    wide = printed(stacked(columns, rows, 120), 120)
    assert wide.count("first") == 1
    assert "┃ reason" in wide


def python(code, *, piped="", **environment):
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m dpmech {code}{piped}"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        timeout=120,
    )


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error():
    call = " ".join(TABLES["compare"])
    result = python(call, piped=" | head -1")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("plan dataset_size 120")
    # Nor does it hide a verdict.
    refused = python("verify README.md 2>&1", piped=" | true")
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr


def test_a_pipe_has_neither_colour_nor_progress_and_an_old_terminal_is_served():
    call = " ".join(TABLES["calibrate"])
    result = python(call, PYTHONIOENCODING="ascii", TERM="dumb")
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert result.stderr == ""
    assert "correlated noise: use NoiseStream" in result.stdout


def test_quiet_leaves_standard_error_empty(monkeypatch):
    call = (*TABLES["calibrate"], "--delta", "0.01")
    assert "note: delta 0.01" in done(*call).stderr
    assert done(*call, "--quiet").stderr == done(*call, "-q").stderr == ""


def test_progress_goes_away(capfd):
    with progress_bar("work", 2) as report:
        report("at one")
        report("")
    assert capfd.readouterr() == ("", "")


def test_a_log_gets_a_line_now_and_then_also_while_nothing_is_reported(capfd, monkeypatch):
    monkeypatch.setattr("dpmech.cli.printing._EVERY", 0.05)
    with progress_bar("work", 3) as report:
        report("one\x1b[2J")
        report("")
        report("two")
        time.sleep(0.5)
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert 2 <= len(lines) <= 12
    assert lines[-1] == "dpmech: work, 0 min, 1 of 3 done: two"
    assert "\x1b" not in err
    with progress_bar("work", 3, quiet=True):
        time.sleep(0.2)
    assert capfd.readouterr() == ("", "")
    # No thread is left that would write into the next output.
    assert not [one for one in threading.enumerate() if one.name == "dpmech progress"]


@pytest.mark.parametrize(
    ("share", "places", "text"),
    [
        (-1e-9, 2, "+0.00 %"),
        (-0.0, 2, "+0.00 %"),
        (-0.00004, 2, "+0.00 %"),
        (-0.00006, 2, "-0.01 %"),
        (0.0123, 2, "+1.23 %"),
    ],
)
def test_no_zero_is_negative(share, places, text):
    assert signed_percent(share, places) == text


def test_cells():
    assert shown("sigma", None) == ""
    assert shown("amplified", [True, False]) == "True, False"
    assert (shown("eps_lower", 0.1), shown("eps_upper", 0.1), shown("eps", 0.1)) == ("0.1", "0.100001", "0.1")
    assert shown("method", "Exact() under Poisson(sampling_prob=0.5), Poisson") == (
        "--method exact under poisson (sampling_prob=0.5), Poisson"
    )


def test_the_width_of_a_pipe_can_be_said(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width() == 220
    monkeypatch.setenv("COLUMNS", "77")
    assert width() == 77
    emit("as it is " * 20)
    assert capsys.readouterr().out == "as it is " * 19 + "as it is\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a full disk to write to")
@pytest.mark.parametrize(
    ("redirection", "words"), [("> /dev/full", "No space left on device"), (">&-", "it is closed")]
)
def test_what_cannot_be_printed_is_said_in_a_sentence(redirection, words):
    command = f"{sys.executable} -m dpmech epsilon --strategy identity --sigma 1 --dataset-size 12 "
    command += f"--batch-size 4 --epochs 1 --sampling min-sep --delta 1e-5 -q {redirection}"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr == f"dpmech epsilon: standard output cannot be written: {words}\n"
