import pytest

from dpmech.free_text import in_markdown, on_one_line, printable, without_commands
from tests.support.reviewed import HOSTILE


def test_what_steers_a_reader_is_shown_as_it_is_written():
    assert printable("a\x1b[2J\u202eb\tc\nd") == "a\\x1b[2J\\u202eb\\tc\nd"
    assert printable("Grüße, 数") == "Grüße, 数"


@pytest.mark.parametrize("mark", list("\\`*_[]<>#|~$&"))
def test_marks_of_markdown_are_escaped(mark):
    assert in_markdown(f"a{mark}b") == f"a\\{mark}b"


def test_markdown_stays_on_its_line_and_makes_no_link():
    shown = in_markdown(HOSTILE)
    assert "\n" not in shown
    assert "https\\://" in shown
    assert in_markdown("www.example.org") == "www\\.example.org"
    assert in_markdown("eps 1e-05: 0.5") == "eps 1e-05: 0.5"


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("::error::a", "\\x3a:error::a"),
        ("a\n  ::set-output name=b::c", "a\n  \\x3a:set-output name=b::c"),
        ("a ##[group]b", "a \\x23#[group]b"),
        ("###vso[task.complete]", "#\\x23#vso[task.complete]"),
        ("a::b, ## c", "a::b, ## c"),
    ],
)
def test_the_runner_of_a_server_finds_no_command(text, due):
    assert without_commands(text) == due
    shown = on_one_line(text)
    assert "\n" not in shown
    assert without_commands(shown) == shown
