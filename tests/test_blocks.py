"""Every block of Python on the pages, and every command, runs as printed and gives what the page says."""

import importlib.util

import pytest

from tests.support.page_blocks import blocks_of, check_text, close, parts, run_blocks
from tests.support.pages import PAGES, name

HEAVY = (
    "torch",
    "sklearn",
    "matplotlib",
    "opacus",
    "transformers",
    "peft",
    "trl",
    "lightning",
    "distributed",
)
# All of its blocks need transformers, which take longer to import than the quick blocks take to run.
WHOLLY_SLOW = {"hugging_face.md"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty one, to run in, and no package missing that the page imports."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runnable(page, section, blocks):
    """Blocks of a page as a parameter of a test, skipped where a package is missing that they import."""
    text = "\n".join(block.code for block in blocks)
    absent = [one for one in HEAVY if one in text and importlib.util.find_spec(one) is None]
    if "optim" in text and importlib.util.find_spec("torch") is None:
        absent.append("torch")
    mark = pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)}")
    return pytest.param(name(page), blocks, marks=mark, id=f"{name(page)}: {section}")


SECTIONS = [(page, section, blocks) for page in PAGES for section, blocks in parts(page).items()]
QUICK = [
    runnable(page, section, quick)
    for page, section, blocks in SECTIONS
    if page.name not in WHOLLY_SLOW and (quick := [block for block in blocks if "slow" not in block.marks])
]
SLOW = [
    runnable(page, section, blocks)
    for page, section, blocks in SECTIONS
    if page.name in WHOLLY_SLOW or any("slow" in block.marks for block in blocks)
]
# torch's word on Opacus' hooks, where the batch itself needs no gradient.
# Lightning's trees speak of what torch will change.
LIGHTNING = pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")
TRL = pytest.mark.filterwarnings("ignore:`.*gradient_checkpointing` is deprecated:FutureWarning")
OPACUS = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


@OPACUS
@TRL
@pytest.mark.parametrize(("page", "blocks"), QUICK)
def test_the_quick_blocks_of_a_section_run_as_printed(page, blocks, folder):
    run_blocks(blocks, page)


@OPACUS
@TRL
@LIGHTNING
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("page", "blocks"), SLOW)
def test_all_blocks_of_a_section_run_as_printed(page, blocks, folder):
    run_blocks(blocks, page)


FENCE = "`" * 3


def run_text(text):
    run_blocks(blocks_of(text), "page.md")


@pytest.mark.parametrize(
    ("code", "right", "wrong"),
    [
        ("one = 1 / 3\none  # {}: a third", "0.333", "0.336"),
        ("print(2, True)  # {}", "2 True", "2 False"),
        ("1 / 3, 2  # {}", "0.333, 2", "0.333, 4"),
        (
            "import dpmech as dm\njoint = dm.ledgers.joint_release([1.0, 1.0])  # .sigma = {}",
            "0.7071",
            "0.7091",
        ),
        ("1e-5 / 3  # {}", "3.33e-6", "3.43e-6"),
        ("4, 0.25  # {}", "4 bins of 0.25", "5 bins of 0.25"),
        (
            "import dpmech as dm\ndm.Bounds.bracket(4.1, 4.3, dm.numerics.Provenance('here'))  # {}",
            "4.3",
            "4.1",
        ),
    ],
)
def test_a_wrong_value_is_seen(code, right, wrong):
    page = f"{FENCE}python\n{code}\n{FENCE}\n"
    run_text(page.format(right))
    with pytest.raises(AssertionError, match="is not"):
        run_text(page.format(wrong))


def test_what_is_printed_is_compared():
    page = f"{FENCE}python\nprint('eps', 1.25)\n{FENCE}\n\n{FENCE}text\neps {{}}\n{FENCE}\n"
    run_text(page.format("1.25"))
    for other in ("1.27", "1.25 and more"):
        with pytest.raises(AssertionError):
            run_text(page.format(other))


def test_commands_are_run_and_compared(folder):
    page = f"{FENCE}console\n$ dpmech calibrate --strategy identity --sampling every\n{{}}\n{FENCE}\n"
    with pytest.raises(AssertionError, match="calibrate"):
        run_text(page.format("..."))
    marked = "<!-- block: exit=2 -->\n" + page
    run_text(marked.format("..."))
    with pytest.raises(AssertionError):
        run_text(marked.format("dpmech calibrate: all is well"))


def test_blocks_go_on_from_each_other_and_fragments_are_left_out():
    one = f"{FENCE}python\nimport dpmech as dm\n{FENCE}\n"
    two = f"{FENCE}pycon\n>>> dm.ledgers.joint_release([1.0, 1.0]).sigma < {{}}\nTrue\n{FENCE}\n"
    run_text(one + two.format(0.8))
    with pytest.raises(AssertionError, match="Expected"):
        run_text(one + two.format(0.6))
    with pytest.raises(AssertionError, match="NameError"):
        run_text(two.format(0.8))
    run_text("<!-- block: fragment -->\n" + two.format(0.8))
    with pytest.raises(AssertionError, match="no mark"):
        run_text("<!-- block: never -->\n" + two.format(0.8))


def test_digits_are_compared_to_the_last_one_shown():
    assert close(6.0788, "6.08", 0.0)
    assert close(6.0788, "6.07", 0.0)
    assert not close(6.0788, "6.06", 0.0)
    assert close(6.0788, "6.06", 0.012)
    assert close(1e-9, "1e-9", 0.0)
    assert not close(3e-9, "1e-9", 0.0)


def test_times_are_left_out_and_dots_end_a_text():
    table = "┃ family ┃ seconds ┃\n┡━━┩\n│ blt │ {} │"
    check_text(table.format(1.5), table.format(2.7), 0.0, "here")
    check_text("one 1\ntwo\nthree", "one 1\n...", 0.0, "here")
    with pytest.raises(AssertionError):
        check_text("one 1\ntwo\nthree", "two\n...", 0.0, "here")
