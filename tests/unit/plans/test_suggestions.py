import pytest

import dpmech as dm
from dpmech.plans.files import read_strategy, write_strategy
from dpmech.plans.names import NO_SAMPLINGS, check_known, meant, sampling_kind, samplings


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("ball-in-bins", "; did you mean balls-in-bins?"),
        ("Poisson", "; did you mean poisson?"),
        ("ball", "; did you mean balls-in-bins?"),
        ("ba", ""),
        ("uniform", ""),
        (3, ""),
    ],
)
def test_the_nearest_name_is_meant(given, hint):
    assert meant(given, samplings()) == hint
    with pytest.raises(dm.InvalidParameterError) as caught:
        check_known("sampling", given, samplings())
    assert caught.value.hint == hint
    assert str(caught.value).endswith(f"got {given!r}{hint}")


def test_a_known_name_is_returned_and_a_reason_replaces_a_guess():
    assert check_known("sampling", "poisson", samplings()) == "poisson"
    with pytest.raises(
        dm.InvalidParameterError, match="no theorem in dpmech covers amplification by shuffling"
    ):
        sampling_kind("shuffle")
    assert not set(NO_SAMPLINGS) & set(samplings())


@pytest.mark.parametrize(
    "strategy", [dm.BLT(9, [0.9], [0.2]), dm.ColumnNormalized(dm.LambdaCGD(9, 1 / 3)), dm.Identity(9)]
)
def test_a_strategy_comes_back_from_its_file_bit_for_bit(strategy, tmp_path):
    path = tmp_path / "fit.json"
    write_strategy(path, strategy)
    assert read_strategy(path) == strategy
    assert dm.Strategy.from_json(path.read_text()) == strategy


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "a strategy in JSON"),
        (b"[1]", "a strategy in JSON"),
        (b'{"type": "Identity"}', "a strategy in JSON"),
        (b'{"type": "Identity", "n": 0}', "n must be an integer in"),
        (b'{"type": "LambdaCGD", "n": 12, "lam": 0.5, "lam": 0.9}', r"\['lam'\] stand there twice"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_bad_strategy_files(content, words, tmp_path):
    path = tmp_path / "fit.json"
    path.write_bytes(content)
    with pytest.raises(dm.InvalidParameterError, match=words):
        read_strategy(path)


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(dm.InvalidParameterError, match="No such file"):
        read_strategy(tmp_path / "missing.json")
    with pytest.raises(dm.InvalidParameterError, match=r"out_strategy must be a file that can be written"):
        write_strategy(tmp_path / "no" / "fit.json", dm.Identity(3))
