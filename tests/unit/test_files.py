"""Files that anybody may have written are read within limits; documents are written whole, in their place."""

import io
import json
import os
import pathlib
import re
import socket
import stat
import sys

import numpy as np
import pytest

import dpmech as dm
from dpmech.files import (
    in_markdown,
    on_one_line,
    parse_json,
    printable,
    read_bytes,
    read_toml,
    without_commands,
    write_bytes,
)
from tests.support import saved
from tests.support.command_line import done, run
from tests.support.reviewed import HOSTILE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links, FIFOs and permissions of POSIX")
PLAN = ("--dataset-size", "12", "--batch-size", "4", "--epochs", "2", "--sampling", "min-sep")
CALIBRATE = ("calibrate", *PLAN, "--eps", "2", "--delta", "1e-5")
IDENTITY = ("--strategy", "identity")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved.calibration("single").certificate().save("certificate.json")
    dm.Ledger().save("ledger.json")
    dm.certificates.new_key("key.pem")
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


def make(kind):
    """The path of something that is no regular file, or not as it should be."""
    path = pathlib.Path(f"{kind}.json")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "standard input":
        path.symlink_to("/dev/stdin")
    elif kind == "loop":
        path.symlink_to(path)
    return str(path)


# Every place where a command reads a file, FILE standing for it.
READERS = {
    "verify": ("verify", "FILE"),
    "show": ("show", "FILE"),
    "risk": ("risk", "FILE"),
    "report": ("report", "FILE", "--out", "x.html"),
    "sign": ("sign", "FILE", "--key", "key.pem", "--issuer", "somebody"),
    "sign key": ("sign", "certificate.json", "--key", "FILE", "--issuer", "somebody"),
    "verify key": ("verify", "certificate.json", "--key", "FILE"),
    "policy": ("verify", "certificate.json", "--policy", "FILE"),
    "audit": ("audit", "FILE"),
    "plan": ("compare", "--plan", "FILE"),
    "fit plan": ("optimize", "--plan", "FILE"),
    "strategy": (*CALIBRATE, "--strategy-file", "FILE"),
    "matrix": (*CALIBRATE, "--strategy", "dense", "--matrix", "FILE"),
    "ledger": ("ledger", "show", "FILE"),
    "ledger add": ("ledger", "add", "FILE", "certificate.json", "--name", "one"),
    "ledger certificate": ("ledger", "add", "ledger.json", "FILE", "--name", "one"),
    "ledger remaining": ("ledger", "remaining", "FILE"),
    "ledger counts": ("ledger", "add-counts", "FILE", "--name", "one", "--sigma", "20"),
    "ledger mechanism": (
        *("ledger", "add-mechanism", "FILE", "--name", "one", "--kind", "zcdp", "--rho", "0.1"),
    ),
}


def refused(name, path):
    """The one line with which a command refuses a file."""
    result = run(*(path if word == "FILE" else word for word in READERS[name]))
    assert result.exit_code == 2, f"{result.output}{result.exception!r}"
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert len(line) <= 400
    return line


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "device", "standard input", "loop"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(name, kind, folder, monkeypatch):
    if kind == "standard input":
        # As under CI: nobody writes, and nobody closes.
        reading, writing = os.pipe()
        kept = os.dup(0)
        os.dup2(reading, 0)
    try:
        line = refused(name, make(kind))
    finally:
        if kind == "standard input":
            os.dup2(kept, 0)
            for one in (reading, writing, kept):
                os.close(one)
    assert re.search("readable|a ledger that exists|a folder that may be written", line)


def test_a_signature_that_is_a_fifo_is_not_waited_for(folder):
    os.mkfifo("certificate.json.dsse")
    result = run("verify", "certificate.json", "--key", "key.pem.pub")
    assert result.exit_code == 2
    assert result.stderr == "dpmech verify: certificate.json.dsse must be a readable file (it is a FIFO)\n"


def test_a_pipe_that_the_caller_made_is_read(folder):
    reading, writing = os.pipe()
    os.write(writing, pathlib.Path("certificate.json").read_bytes())
    os.close(writing)
    try:
        assert dm.verify(f"/dev/fd/{reading}").ok
    finally:
        os.close(reading)


NESTED = {
    "JSON lists": "[" * 50_000,
    "JSON objects": '{"a":' * 50_000,
    "closed": "[" * 5_000 + "]" * 5_000,
    "shallow": "[" * 70 + "]" * 70,
    "TOML lists": "a = " + "[" * 5_000,
    "TOML tables": "a = " + "{a = " * 5_000,
    "TOML keys": ".".join("a" * 500_000) + " = 1",
    "TOML table": "[" + ".".join("a" * 4_000) + "]\n" + "b = 1\n" * 100_000,
    "TOML lists, closed": "max_eps = " + "[" * 70 + "]" * 70,
    "TOML number": "max_eps = " + "9" * 5_000,
    "TOML bits": "max_eps = 0x" + "f" * 20_000,
    "TOML repeats": "max_eps = 1\nmax_eps = 2\n",
    "NaN": '{"type": "LambdaCGD", "n": 6, "lam": NaN}',
    "large": '{"type": "LambdaCGD", "n": 6, "lam": 1e999}',
    "huge integer": '{"type": "LambdaCGD", "n": ' + "9" * 5_000 + ', "lam": 0.5}',
    "repeats": '{"type": "LambdaCGD", "n": 6, "lam": 0.5, "lam": 0.25}',
    "not text": "\udcff\udcfe",
    "empty": "",
}
# A broken checksummed file is a check that failed, as it always was.
WITH_CHECKSUM = {"verify", "show", "risk", "report", "sign", "ledger certificate"}


@pytest.mark.parametrize("name", [name for name in READERS if name not in WITH_CHECKSUM])
@pytest.mark.parametrize("kind", NESTED)
def test_what_no_document_is_like_is_refused_in_a_sentence(name, kind, folder):
    path = pathlib.Path("file.json")
    path.write_bytes(NESTED[kind].encode("utf-8", "surrogateescape"))
    if kind == "not text" and name.startswith("ledger"):
        return  # a checksummed file that is broken
    refused(name, path)


@pytest.mark.parametrize("name", sorted(WITH_CHECKSUM))
@pytest.mark.parametrize("kind", ["JSON lists", "JSON objects", "closed", "NaN", "huge integer", "repeats"])
def test_sealed_files_that_are_none_are_told_in_a_sentence(name, kind, folder):
    pathlib.Path("file.json").write_text(NESTED[kind])
    result = run(*("file.json" if word == "FILE" else word for word in READERS[name]))
    assert result.exit_code == 1, result.exception
    (line,) = (result.stdout + result.stderr).splitlines()
    assert len(line) <= 400


def test_repeated_entries_are_not_the_last_of_them():
    text = dm.LambdaCGD(6, 0.5).to_json()
    assert dm.Strategy.from_json(text) == dm.LambdaCGD(6, 0.5)
    with pytest.raises(dm.InvalidParameterError, match="strategy"):
        dm.Strategy.from_json(text.replace('"lam"', '"lam": 0.1, "lam"'))
    with pytest.raises(dm.InvalidParameterError, match="participation"):
        dm.Participation.from_json('{"type": "Poisson", "sampling_prob": 0.1, "sampling_prob": 0.2}')
    with pytest.raises(ValueError, match=r"the entries \['a'\] stand there twice"):
        parse_json('[{"a": 1, "a": 2}]')
    for text in ("[" * 100_000, "[" * 70 + "]" * 70):
        with pytest.raises(ValueError, match="nested more than 64 levels deep"):
            parse_json(text)


def npy(shape, numbers=b"", kind="<f8", version=(1, 0), header=None):
    """A .npy file with this header, whatever it holds."""
    text = header or str({"descr": kind, "fortran_order": False, "shape": shape})
    content = text.encode("latin-1") + b"\n"
    length = len(content).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + content + numbers


FULL = np.tril(np.ones((6, 6))).tobytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy((6, 6), FULL[:-1]), "its header says 6 x 6 numbers, and it holds 287 bytes"),
        (npy((10**9, 10**9)), "its header says 1000000000 x 1000000000 numbers, and it holds 0 bytes"),
        (npy((10**30,)), "its header says"),
        (npy((-6, -6), FULL), "its header says -6 x -6 numbers"),
        (npy((6, 6), FULL, kind="|O"), "it holds object, and no numbers"),
        (npy((6, 6), FULL, kind="<c16"), "and no numbers"),
        (npy((6, 6), FULL, header="(" * 9000), "a readable .npy or CSV file"),
        (npy((6, 6), FULL, header="{" * 100), "a readable .npy or CSV file"),
        (npy((6, 6), FULL, version=(2, 0), header=" " * 60_000), "a readable .npy or CSV file"),
        (npy((6, 6), FULL, version=(9, 9)), "a readable .npy or CSV file"),
        (npy((3, 12), FULL), "--matrix must be 6 x 6, one row per step, got 3 x 12"),
        (npy((36,), FULL), "--matrix must be 6 x 6, one row per step, got 36"),
        (npy((6, 6), np.full((6, 6), np.nan).tobytes()), "square matrix of finite numbers"),
        (b"\x93NUMPY", "a readable .npy or CSV file"),
        (b"", "a readable .npy or CSV file"),
        (b"x" * 1_000_000, "a file of at most 66688 bytes, for 6 x 6 numbers"),
    ],
)
def test_a_matrix_is_not_made_room_for_on_the_word_of_its_header(content, words, folder):
    pathlib.Path("m.npy").write_bytes(content)
    result = run(*CALIBRATE, "--strategy", "dense", "--matrix", "m.npy")
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    (line,) = result.stderr.splitlines()
    assert words in line
    assert len(line) <= 400


@pytest.mark.parametrize("save", [np.save, lambda path, matrix: np.savetxt("m.csv", matrix, delimiter=",")])
def test_a_matrix_is_read_as_numpy_wrote_it(save, folder):
    matrix = np.tril(np.random.default_rng(1).uniform(0.1, 1.0, (6, 6)))
    save("m.npy", matrix)
    name = "m.npy" if os.path.exists("m.npy") else "m.csv"
    found = json.loads(done(*CALIBRATE, "--strategy", "dense", "--matrix", name, "--json").stdout)
    assert dm.Strategy.from_dict(found["strategy"]) == dm.Dense(matrix)


def test_sizes_are_limits_and_not_memory(folder):
    path = pathlib.Path("sparse.toml")
    with path.open("wb") as stream:
        stream.truncate(10**12)
    with pytest.raises(dm.InvalidParameterError, match="a file of at most 1000000 bytes"):
        read_toml("policy", path)
    with pytest.raises(dm.InvalidParameterError, match="a file of at most 5 bytes; more"):
        read_bytes("x", path, largest=5, hint="; more")
    assert read_bytes("x", "/proc/self/stat") if os.path.exists("/proc/self/stat") else True
    with pytest.raises(dm.InvalidParameterError, match="null"):
        read_bytes("x", "a\0b")


def test_values_that_have_no_repr_are_named_all_the_same():
    with pytest.raises(dm.InvalidParameterError, match="got a int that is too large to show"):
        dm.Identity(-(10**6000))
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(dm.InvalidParameterError, match="got a list that is too large to show"):
        dm.calibrate_sigma(dm.Identity(1), deep, 1e-5)


# Writing.


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def writers():
    """Every way to write a file, by the name of what is written."""
    certificate = saved.calibration("single").certificate()
    ledger = dm.Ledger()
    return {
        "certificate": ("certificate.json", certificate.save),
        "ledger": ("ledger.json", ledger.save),
        "strategy": ("fit.json", lambda path: dm.plans.write_strategy(path, dm.Identity(3))),
        "calibrate": ("out.json", lambda path: done(*CALIBRATE, *IDENTITY, "--force", "--out", path)),
        "report": (
            "page.html",
            lambda path: done("report", "certificate.json", "--claim-only", "--out", path),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["certificate", "ledger", "strategy", "calibrate", "report"])
@pytest.mark.parametrize(("umask", "due"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_new_files_have_what_the_umask_leaves_and_others_keep_theirs(name, umask, due, folder):
    _, write = writers()[name]
    path = folder / f"new-{name}.html"
    os.umask(umask)
    write(path)
    assert mode_of(path) == due
    path.chmod(0o640)
    write(path)
    assert mode_of(path) == 0o640
    assert not list(folder.glob("*.part")) + list(folder.glob(".dpmech*"))


@pytest.mark.parametrize("name", ["certificate", "ledger", "strategy", "calibrate", "report"])
def test_links_are_followed_and_stay(name, folder):
    target, write = writers()[name]
    (folder / "real").mkdir()
    real, link = folder / "real" / f"real-{target}", folder / f"link-{target}"
    link.symlink_to(os.path.join("real", real.name))
    write(link)  # the link dangles
    assert link.is_symlink()
    first = real.read_bytes()
    write(link)
    assert link.is_symlink()
    assert first
    assert sorted(one.name for one in real.parent.iterdir()) == [real.name]


def test_a_ledger_is_one_by_all_its_names(folder):
    """`ledger add link.json` replaced the link, and the ledger missed the release."""
    os.mkdir("elsewhere")
    os.symlink("../ledger.json", "elsewhere/link.json")
    done("ledger", "add", "elsewhere/link.json", "certificate.json", "--name", "one")
    done("ledger", "add", "ledger.json", "certificate.json", "--name", "two")
    done("ledger", "add-counts", "elsewhere/link.json", "--name", "three", "--sigma", "20")
    assert os.path.islink("elsewhere/link.json")
    book = dm.Ledger.load("ledger.json")
    assert [one.name for one in (*book.releases, *book.counts)] == ["one", "two", "three"]
    refusal = run("ledger", "add", "elsewhere/link.json", "certificate.json", "--name", "x", "--new")
    assert refusal.exit_code == 2


def test_a_link_and_its_ledger_have_one_lock(folder):
    from dpmech.ledgers import locked

    os.symlink("ledger.json", "link.json")
    script = (
        "import dpmech as dm\nfrom dpmech.ledgers import locked\n"
        "try:\n    with locked('ledger.json', patience=0.05): print('had')\n"
        "except dm.InvalidParameterError: print('refused')\n"
    )
    import subprocess

    with locked("link.json"):
        found = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
        )
    assert found.stdout == "refused\n"


def test_devices_are_written_to_and_not_replaced(folder):
    reading, writing = os.pipe()
    write_bytes("out", f"/dev/fd/{writing}", b"content")
    assert os.read(reading, 100) == b"content"
    os.close(reading)
    os.close(writing)
    write_bytes("out", "/dev/null", b"content")
    with pytest.raises(dm.InvalidParameterError, match="can be written"):
        write_bytes("out", folder, b"")


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_an_output_that_could_wait_for_ever_is_refused(kind, folder):
    name = make(kind)
    with pytest.raises(dm.InvalidParameterError, match="FIFO or a socket"):
        write_bytes("out", name, b"")
    result = run(*CALIBRATE, *IDENTITY, "--out", name)
    assert result.exit_code == 2
    assert "must be a file, not a FIFO or a socket" in result.stderr


def test_a_page_replaces_no_document_that_is_too_large_to_look_at(folder):
    document = json.loads(pathlib.Path("certificate.json").read_text()) | {"pad": "x" * 10_000_001}
    pathlib.Path("large.json").write_text(json.dumps(document))
    command = ("report", "certificate.json", "--format", "json", "--out", "large.json")
    result = run(*command)
    assert result.exit_code == 2
    assert "--force replaces it" in result.stderr
    assert json.loads(pathlib.Path("large.json").read_text()) == document
    done(*command, "--force")


def test_a_ledger_with_hard_links_is_not_forked(folder):
    os.link("ledger.json", "other.json")
    before = pathlib.Path("ledger.json").read_bytes()
    ledger = dm.Ledger.load("other.json")
    ledger.add("first", dm.Certificate.load("certificate.json"))
    with pytest.raises(dm.InvalidParameterError, match=r"has hard links.*copy it to a new file"):
        ledger.save("other.json")
    result = run("ledger", "add", "other.json", "certificate.json", "--name", "first")
    assert result.exit_code == 2
    assert "hard links" in result.stderr
    assert pathlib.Path("ledger.json").read_bytes() == before == pathlib.Path("other.json").read_bytes()
    os.unlink("other.json")
    ledger.save("ledger.json")


def test_what_a_group_may_do_is_not_given_to_another(folder, monkeypatch):
    """Where the group cannot be kept, the one that comes instead may do what everybody may."""
    path = folder / "shared.json"
    path.write_text("{}")
    path.chmod(0o664)
    status, change = os.stat, []

    def other_group(one, *arguments, **settings):
        found = status(one, *arguments, **settings)
        return os.stat_result([*found[:5], found[5] + (str(one) == str(path)), *found[6:]])

    monkeypatch.setattr("dpmech.files.os.stat", other_group)

    def refused_change(*ids):
        change.append(ids)
        raise PermissionError

    monkeypatch.setattr("dpmech.files.os.chown", refused_change)
    write_bytes("out", path, b"new")
    monkeypatch.undo()
    assert change
    assert path.read_bytes() == b"new"
    assert mode_of(path) == 0o644


def test_a_half_written_key_is_none(folder, monkeypatch):
    class Full(io.BytesIO):
        def write(self, content):
            raise OSError(28, "No space left on device")

    def opened(handle, mode):
        os.close(handle)
        return Full()

    monkeypatch.setattr("dpmech.certificates.keys.os.fdopen", opened)
    with pytest.raises(dm.InvalidParameterError, match="No space left"):
        dm.certificates.new_key("other.pem")
    monkeypatch.undo()
    assert not list(folder.glob("other*"))


# What --out replaces.


def test_another_document_is_replaced_only_when_that_is_said(folder):
    call = (*CALIBRATE, "--strategy", "identity", "--clip-norm", "1")
    done(*call, "--out", "c.json")
    dm.sign("c.json", "key.pem", "somebody")
    kept = pathlib.Path("c.json").read_bytes()
    done(*call, "--out", "c.json")  # says the same
    for other in (
        (*call[:-1], "2", "--out", "c.json"),
        (*CALIBRATE[:-1], "1e-6", "--strategy", "identity", "--out", "c.json"),
        ("epsilon", *PLAN, "--strategy", "identity", "--sigma", "2", "--delta", "1e-5", "--out", "c.json"),
        ("delta", *PLAN, "--strategy", "identity", "--sigma", "2", "--eps", "1", "--out", "c.json"),
        ("optimize", *CALIBRATE[1:], "--families", "lambda-cgd", "--out", "c.json"),
        ("optimize", *CALIBRATE[1:], "--families", "lambda-cgd", "--out-strategy", "c.json"),
        ("report", "certificate.json", "--format", "json", "--claim-only", "--out", "c.json"),
    ):
        result = run(*other)
        assert result.exit_code == 2, result.output
        assert "a new file, or one that says the same, got c.json; --force replaces it" in result.stderr
        assert pathlib.Path("c.json").read_bytes() == kept
    done(*call[:-1], "2", "--out", "c.json", "--force")
    assert dm.Certificate.load("c.json").clip_norm == 2.0


def test_a_claim_that_will_differ_is_refused_before_it_is_computed(folder, monkeypatch):
    from dpmech.cli import calibrating

    pathlib.Path("notes.txt").write_text("not to be lost")
    monkeypatch.setattr(calibrating, "calibrate_sigma", None)
    for path in ("notes.txt", "certificate.json"):
        result = run(*CALIBRATE, "--strategy", "identity", "--out", path)
        assert result.exit_code == 2
        assert "--force replaces it" in result.stderr
    assert pathlib.Path("notes.txt").read_text() == "not to be lost"


def test_pages_may_be_made_again(folder):
    for _ in range(2):
        done("report", "certificate.json", "--claim-only", "--out", "page.html")


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
