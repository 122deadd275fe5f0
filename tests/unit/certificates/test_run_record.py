import dataclasses
import itertools
import json
import subprocess
import sys

import pytest

import dpmech as dm
from dpmech.certificates import run_record
from dpmech.certificates.document import checksum_of_document, to_text
from tests.support import saved

OS = dm.certificates.Randomness("draws", "0" * 64, False)
SEEDED = dm.certificates.Randomness("draws", "1" * 64, True)


def calibrate(strategy, participation, method=None, eps=2.0, **settings):
    return dm.calibrate_sigma(strategy, eps, 1e-5, participation=participation, method=method, **settings)


CALS = {
    "min-sep": saved.calibration("min-sep"),
    "epochs": saved.calibration("epochs"),
    "normalized": saved.calibration("min-sep normalized"),
    "every": saved.calibration("every step"),
    "single": saved.calibration("single"),
    "poisson": saved.calibration("poisson"),
    "prv": saved.calibration("poisson prv"),
    "cyclic": saved.calibration("cyclic"),
    "bins": saved.calibration("bins"),
    "bins moments": saved.calibration("bins moments"),
    "bins program": saved.calibration("bins program"),
    "bins certified": saved.calibration("bins certified"),
}
SAMPLED = {name for name, cal in CALS.items() if cal.participation.random}
# What verifying a sampled claim costs does not depend on the number of steps: one of them stays quick, for
# one claim of a kind.
LONG = {"prv", "cyclic", "bins program"}
RECORDS = [
    pytest.param(name, steps, planned, marks=[pytest.mark.slow] if slow else [])
    for name in CALS
    for steps, planned in [(0, False), (7, True), (12, False)]
    for slow in [name in SAMPLED and (steps != 7 or name in LONG)]
]


def seen(cal, steps):
    """Participations of the example that takes part in step 0, as a sampler would realise them."""
    if cal.participation.per_release:
        return {}
    pattern = cal.participation.pattern(12)
    most = min(-(-steps // pattern.min_sep), pattern.max_participations)
    return {"most_participations": most, "smallest_separation": pattern.min_sep if most > 1 else None}


def record(name, steps=12, **changes):
    cal = CALS[name]
    planned = changes.get("stopped_by_plan", False)
    executed = dm.executed_epsilon(cal, steps, rng=1) if planned or steps == 0 else cal.achieved
    given = {
        "certificate": cal.certificate(clip_norm=1.0, expected_batch_size=5.0),
        "steps": steps,
        "executed": executed,
        "sampler": OS,
        "noise": OS,
        **seen(cal, steps),
    }
    return dm.RunRecord(**(given | changes))


@pytest.mark.parametrize(("name", "steps", "planned"), RECORDS)
def test_a_record_is_saved_loaded_and_verified(name, steps, planned, tmp_path):
    made = record(name, steps, stopped_by_plan=planned)
    made.save(tmp_path / "run.json")
    assert dm.RunRecord.load(tmp_path / "run.json") == made
    found = dm.verify(tmp_path / "run.json")
    assert found.ok, found.failures
    assert found.run == made
    assert found.certificate == made.certificate
    assert str(made) in str(found)
    assert f"{steps} of 12 steps" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["run"]["steps"] == steps
    assert (tmp_path / "run.json").read_text().splitlines()[0].startswith('{"guarantee": ')


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(sorted(CALS.keys() - SAMPLED | {"poisson"}), id="quick"),
        pytest.param(sorted(SAMPLED), id="sampled", marks=pytest.mark.slow),
    ],
)
def test_every_combination_passes_in_a_fresh_process(names, tmp_path):
    for number, name in enumerate(names):
        noise = dm.certificates.Randomness("draws", f"{number:064}", False)
        record(name, 3, noise=noise).save(tmp_path / f"{name}.json")
    files = sorted(map(str, tmp_path.glob("*.json")))
    run = subprocess.run(
        [sys.executable, "-c", "from dpmech.cli import main; main()", "verify", "--details", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("VERIFIED") == len(names)
    assert run.stdout.count("3 of 12 certified steps") == len(names)


# ---- what early stopping is worth


@pytest.mark.parametrize("name", ["min-sep", "normalized", "every", "poisson", "cyclic", "bins moments"])
def test_executed_epsilon_rises_to_the_claim(name):
    cal = CALS[name]
    values = [dm.executed_epsilon(cal, steps).upper for steps in (0, 1, 4, 8, 12)]
    assert values[0] == 0.0
    assert values[-1] == cal.achieved.upper
    assert all(one <= other * (1 + 1e-6) for one, other in itertools.pairwise(values))
    assert values[1] < 0.99 * values[-1]


def test_a_stop_says_what_it_owes():
    """A run that stopped because of its results is charged the full claim, as its first line states."""
    claim = CALS["min-sep"].achieved.upper
    whole, looked, planned = (
        record("min-sep"),
        record("min-sep", 7),
        record("min-sep", 7, stopped_by_plan=True),
    )
    assert "stopped" not in whole.headline
    assert looked.executed.upper == claim
    assert "the full claim: the decision to stop may depend on results" in looked.headline
    assert planned.executed.upper < claim
    assert "decided without looking at results" in planned.headline
    assert "only if the number of steps was decided without looking" in str(planned.executed.by)
    assert "nothing was released" in record("min-sep", 0).headline
    for one in (whole, looked, planned):
        assert dm.RunRecord.from_json(one.to_json()) == one
        assert one.to_json().splitlines()[0] == f'{{"guarantee": "{one.headline}",'


def test_a_stop_by_plan_that_owes_the_whole_claim_is_not_blamed_on_results():
    made = record("bins certified", 6, stopped_by_plan=True)
    assert made.executed == CALS["bins certified"].achieved
    assert "the full claim: no smaller bound is known for the executed steps" in made.headline
    assert "results" not in made.headline


def test_executed_epsilon_is_that_of_the_shorter_mechanism():
    sigma = CALS["min-sep"].sigma
    matrix = dm.LambdaCGD(12, 0.8).to_dense()[:7, :7]
    short = dm.epsilon(dm.Dense(matrix), sigma, 1e-5, participation=dm.MinSep(4))
    assert dm.executed_epsilon(CALS["min-sep"], 7).upper == pytest.approx(short.upper, rel=1e-9)
    # Column norms of a shorter matrix would be others: the leading block keeps those of all steps.
    normalized = CALS["normalized"]
    block = dm.Dense(normalized.strategy.to_dense()[:7, :7])
    expected = dm.epsilon(block, normalized.sigma, 1e-5, participation=dm.MinSep(4))
    assert dm.executed_epsilon(normalized, 7).upper == pytest.approx(expected.upper, rel=1e-9)
    # An epoch that has begun counts whole.
    assert dm.executed_epsilon(CALS["epochs"], 5) == dm.executed_epsilon(CALS["epochs"], 8)
    assert dm.executed_epsilon(CALS["epochs"], 9) == CALS["epochs"].achieved


def test_steps_within_the_bands_of_a_cyclic_strategy():
    """The leading block is full there, and needs no band structure."""
    cal = calibrate(dm.ColumnNormalized(dm.SquareRoot(40, 4)), dm.CyclicPoisson(0.2, 5))
    values = [dm.executed_epsilon(cal, steps).upper for steps in range(1, 7)]
    assert all(one <= other for one, other in itertools.pairwise(values))
    assert values[0] > 0.0


def test_a_certified_sample_is_not_drawn_anew():
    assert dm.executed_epsilon(CALS["bins certified"], 4) == CALS["bins certified"].achieved


def test_executed_epsilon_never_falls_below_a_budget():
    quiet = dataclasses.replace(CALS["single"], sigma=1e12)
    assert dm.executed_epsilon(quiet, 4).upper == 1e-9


@pytest.mark.parametrize("steps", [-1, 13, 1.5, True])
def test_executed_epsilon_refuses_other_steps(steps):
    with pytest.raises(dm.InvalidParameterError, match="steps"):
        dm.executed_epsilon(CALS["poisson"], steps)
    with pytest.raises(dm.InvalidParameterError, match="claim"):
        dm.executed_epsilon(2.0, 3)


@pytest.mark.parametrize(
    ("schema", "steps", "expected"),
    [
        (dm.MinSep(4, 2), 3, (dm.MinSep(3, 2), 3)),
        (dm.MinSep(4), 9, (dm.MinSep(4), 9)),
        (dm.FixedEpochs(3), 5, (dm.FixedEpochs(2), 8)),
        (dm.BallsInBins(4), 4, (dm.BallsInBins(4), 4)),
        (dm.BallsInBins(4), 5, (dm.BallsInBins(4), 8)),
        (dm.Poisson(0.1), 5, (dm.Poisson(0.1), 5)),
        (dm.EveryStep(), 5, (dm.EveryStep(), 5)),
    ],
)
def test_participations_of_a_prefix(schema, steps, expected):
    assert schema.prefix(12, steps) == expected
    for bad in (0, 13):
        with pytest.raises(dm.InvalidParameterError, match="steps"):
            schema.prefix(12, bad)


# ---- what cannot be recorded


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("min-sep", {"smallest_separation": 3}, "3 steps apart, 4 were certified"),
        ("min-sep", {"most_participations": 4}, "took part 4 times, 3 were certified"),
        ("min-sep", {"most_participations": None}, "not recorded"),
        ("min-sep", {"smallest_separation": None}, "smallest separation of None"),
        ("min-sep", {"steps": 4, "most_participations": 2, "smallest_separation": 4}, "do not fit 4 steps"),
        ("min-sep", {"most_participations": 1}, "smallest separation of 4"),
        ("epochs", {"smallest_separation": 5, "most_participations": 2}, "5 steps apart, 4 were certified"),
        ("bins", {"smallest_separation": 8, "most_participations": 2}, "8 steps apart, 4 were certified"),
        ("poisson", {"most_participations": 2}, "secret"),
        ("poisson", {"smallest_separation": 2}, "secret"),
    ],
)
def test_participations_outside_the_certificate_are_refused(name, changes, match):
    with pytest.raises(dm.exceptions.CertificateError, match=match):
        record(name, **changes)


def test_less_eps_needs_a_planned_stop():
    short = dm.executed_epsilon(CALS["min-sep"], 6)
    assert record("min-sep", 6, stopped_by_plan=True).executed == short
    for steps, planned in [(6, False), (12, True)]:
        with pytest.raises(dm.exceptions.CertificateError, match="stopped before its end by plan"):
            record("min-sep", steps, executed=short, stopped_by_plan=planned)
    more = CALS["min-sep"].achieved.scaled(1.1)
    with pytest.raises(dm.exceptions.CertificateError, match="above the certified"):
        record("min-sep", 6, executed=more, stopped_by_plan=True)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"steps": 13}, "steps"),
        ({"processes": 0}, "processes"),
        ({"stopped_by_plan": 1}, "stopped_by_plan"),
        ({"executed": 2.0}, "executed"),
        ({"uniqueness": "flattened"}, "uniqueness"),
        ({"checkpoint_history": "same"}, "checkpoint_history"),
        ({"certificate": CALS["min-sep"].certificate()}, "clip_norm"),
        ({"certificate": CALS["min-sep"]}, "Certificate"),
    ],
)
def test_bad_arguments_are_named(changes, match):
    with pytest.raises(dm.InvalidParameterError, match=match):
        record("min-sep", **changes)


@pytest.mark.parametrize(
    ("source", "fingerprint", "seeded", "match"),
    [
        ("", "0" * 64, False, "source"),
        ("x", "0" * 63, False, "fingerprint"),
        ("x", "g" * 64, False, "fingerprint"),
        ("x", "0" * 64, 1, "seeded"),
    ],
)
def test_randomness_is_checked(source, fingerprint, seeded, match):
    with pytest.raises(dm.InvalidParameterError, match=match):
        dm.certificates.Randomness(source, fingerprint, seeded)


def test_seeded_runs_pass_but_not_rigorously():
    made = record("min-sep", sampler=SEEDED)
    found = dm.verify(made)
    assert found.ok
    assert "seeded by the caller" in str(found)
    strict = dm.verify(made, rigorous=True)
    assert not strict.ok
    (failure,) = strict.failures
    assert failure.startswith(
        "randomness: the caller seeded the batches: they are as secret as that seed; batches from"
    )
    both = dm.verify(record("min-sep", sampler=SEEDED, noise=SEEDED), rigorous=True)
    assert "the batches and the noise" in both.failures[0]
    assert dm.verify(record("min-sep"), rigorous=True).ok
    assert not dm.verify(record("bins"), rigorous=True).ok  # an estimate


# ---- forgeries


def leaves(value, path=()):
    if isinstance(value, dict) and {"decimal", "hex"} != set(value):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    return [path]


def altered(value):
    if isinstance(value, dict):
        number = value["decimal"]
        number = [0.5 * one for one in number] if isinstance(number, list) else 0.5 * number + 1e-3
        digits = [one.hex() for one in number] if isinstance(number, list) else number.hex()
        return {"decimal": number, "hex": digits}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if value in ("flattened", "same"):
        return CHOICES[CHOICES.index(value) + 1].value
    if isinstance(value, str):
        return ("1" if value[0] != "1" else "2") + value[1:]
    return 1


STOPPED = {
    "stopped_by_plan": True,
    "uniqueness": dm.certificates.Uniqueness.FLATTENED,
    "checkpoint_history": dm.certificates.CheckpointHistory(
        dm.certificates.CheckpointMatch.SAME,
        dm.certificates.CheckpointMatch.SAME,
        dm.certificates.CheckpointMatch.SAME,
    ),
}
DOCUMENT = record("min-sep", 6, **STOPPED).to_dict()
# What may be anything: there is nothing to compare them with.
FREE = {"fingerprint", "source", "seeded", "processes", "uniqueness", "dataset", "model", "loss"}
CHOICES = [*dm.certificates.Uniqueness, *dm.certificates.CheckpointMatch]

# Other values that are true as well: participations further apart.
TRUE_TOO = {("run", "smallest_separation")}


def with_altered(path):
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = altered(inner[path[-1]])
    return document


@pytest.mark.parametrize("path", leaves(DOCUMENT), ids=".".join)
def test_any_altered_entry_is_refused(path, tmp_path):
    document = with_altered(path)
    target = tmp_path / "run.json"
    target.write_text(to_text(document))
    assert not dm.verify(target).ok
    if path == ("checksum",) or path[0] == "certificate":
        return  # the certificate has a checksum of its own
    document["checksum"] = checksum_of_document(document)
    target.write_text(to_text(document))
    found = dm.verify(target)
    if path[0] == "run" and path[-1] in FREE:
        assert found.ok
        assert found.run != record("min-sep", 6, **STOPPED)
    elif path in TRUE_TOO:
        assert found.ok
    else:
        assert not found.ok, str(found)


@pytest.mark.slow
def test_a_rehashed_lower_eps_is_recomputed(tmp_path):
    made = record("poisson", 6, stopped_by_plan=True)
    cheaper = dataclasses.replace(made, executed=made.executed.scaled(0.97))
    found = dm.verify(cheaper)
    assert not found.ok
    assert found.claim.value == "PROVED"  # of the certificate inside
    (line,) = found.failures
    assert line.startswith("executed: REFUTED: ")
    cheaper.save(tmp_path / "run.json")
    assert not dm.verify(tmp_path / "run.json").ok


@pytest.mark.parametrize("name", ["min-sep", pytest.param("poisson", marks=pytest.mark.slow)])
@pytest.mark.parametrize("eps", [0.0, 1e-320])
def test_a_forged_eps_that_is_no_budget_is_refused(name, eps, tmp_path):
    made = record(name, 6, stopped_by_plan=True)
    forged = dataclasses.replace(made, executed=dm.Bounds.bracket(0.0, eps, made.executed.by))
    forged.save(tmp_path / "run.json")
    found = dm.verify(tmp_path / "run.json")
    assert not found.ok
    assert found.run == forged
    assert any(line.startswith("executed: REFUTED") for line in found.failures)


def test_a_failure_to_form_the_claim_is_a_refusal(monkeypatch):
    def fail(*arguments):
        raise MemoryError("too large")

    made = record("min-sep", 6, stopped_by_plan=True)
    monkeypatch.setattr(dm.LambdaCGD, "prefix", fail)
    found = dm.verify(made)
    assert found.failures == (
        "executed: eps of the steps executed could not be formed as a claim: too large",
    )


def test_other_files_are_refused(tmp_path):
    for content in (
        '{"run": 1}',
        '{"run": {}, "schema_version": 2}',
        "[]",
        "{",
        '{"run": {}, "schema_version": 1}',
    ):
        (tmp_path / "run.json").write_text(content)
        found = dm.verify(tmp_path / "run.json")
        assert not found.ok
        assert found.run is None
        with pytest.raises(dm.exceptions.CertificateError):
            dm.RunRecord.load(tmp_path / "run.json")
    with pytest.raises(dm.InvalidParameterError, match="readable file"):
        dm.RunRecord.load(tmp_path / "none.json")
    with pytest.raises(dm.InvalidParameterError, match="can be written"):
        record("min-sep").save(tmp_path / "no" / "run.json")
    certificate = CALS["min-sep"].certificate()
    with pytest.raises(dm.exceptions.CertificateError, match="run record"):
        dm.RunRecord.from_json(certificate.to_json().replace("schema_version", "version"))


# ---- what a run states of its data and its checkpoints


@pytest.mark.parametrize(
    ("uniqueness", "said"),
    [
        (dm.certificates.Uniqueness.FLATTENED, "examples: each under one index"),
        (dm.certificates.Uniqueness.EXAMPLE_IDS, "examples: each once, by the ids"),
        (
            dm.certificates.Uniqueness.NOT_CHECKED,
            "examples: the dataset was not checked for duplicates",
        ),
    ],
)
def test_a_verification_says_whether_examples_were_compared(uniqueness, said, tmp_path):
    record("min-sep", uniqueness=uniqueness).save(tmp_path / "run.json")
    found = dm.verify(tmp_path / "run.json", rigorous=True)
    assert found.ok
    assert found.run.uniqueness == uniqueness
    assert any(said in str(check) for check in found.checks)
    assert ("not checked" in str(found)) == (uniqueness == dm.certificates.Uniqueness.NOT_CHECKED)


def test_a_verification_says_what_became_of_checkpoints(tmp_path):
    kept = dm.certificates.CheckpointHistory(
        dm.certificates.CheckpointMatch.SAME,
        dm.certificates.CheckpointMatch.UNKNOWN,
        dm.certificates.CheckpointMatch.ACCEPTED,
    )
    record("min-sep", checkpoint_history=kept).save(tmp_path / "run.json")
    found = dm.verify(tmp_path / "run.json")
    assert found.ok
    assert found.run.checkpoint_history == kept
    assert "resumed from a checkpoint with another loss" in str(found)
    said = (
        "checkpoints: the same dataset, no whole fingerprint of the model, another loss, for which the caller"
    )
    assert any(str(check).startswith(said) for check in found.checks)
    (failure,) = dm.verify(tmp_path / "run.json", rigorous=True).failures
    assert failure.startswith(said)
    none = dm.verify(record("min-sep"), rigorous=True)
    assert none.ok
    assert any(str(check) == "checkpoints: none saved or loaded" for check in none.checks)


def test_checkpoint_history_is_checked():
    with pytest.raises(dm.InvalidParameterError, match="model"):
        dm.certificates.CheckpointHistory(
            dm.certificates.CheckpointMatch.SAME, "same", dm.certificates.CheckpointMatch.SAME
        )


def test_a_verification_fails_where_the_measured_noise_is_not_the_certified(tmp_path):
    good = dm.certificates.NoiseCheck(1.002, 10_000, 12, 1e-9)
    bad = dataclasses.replace(good, ratio=0.499, findings=("scale", "a\nb"))
    for checked, ok in ((good, True), (bad, False)):
        made = record("min-sep", noise_check=checked)
        made.save(tmp_path / "run.json")
        assert dm.RunRecord.load(tmp_path / "run.json") == made
        found = dm.verify(tmp_path / "run.json")
        assert found.ok == ok
        assert str(checked) in str(found)
    assert "noise refuted at level 1e-09 (scale, 'a\\nb'): 0.499 of" in str(bad)
    assert "noise_check" not in json.loads(record("min-sep").to_json())["run"]


@pytest.mark.parametrize(
    "changes",
    [{"ratio": 0.0}, {"values": 1}, {"steps": 0}, {"level": 1.0}, {"findings": "scale"}],
    ids=lambda one: next(iter(one)),
)
def test_a_noise_check_is_checked(changes):
    with pytest.raises(dm.InvalidParameterError, match=next(iter(changes))):
        dm.certificates.NoiseCheck(**({"ratio": 1.0, "values": 9, "steps": 3, "level": 1e-9} | changes))


def test_a_noise_check_of_more_steps_than_executed_is_refused():
    with pytest.raises(dm.InvalidParameterError, match="at most 7 steps"):
        record("min-sep", 7, noise_check=dm.certificates.NoiseCheck(1.0, 100, 8, 1e-9))


def test_words_of_a_file_add_no_line_of_their_own():
    """A record may be forged: what it says of its random numbers is quoted, and cut."""
    forged = dm.certificates.Randomness("OS\nverified: eps 0.1\x1b[2K" + 300 * "x", "0" * 64, False)
    told = str(record("min-sep", sampler=forged, noise=forged))
    assert told.isprintable()
    assert told.count(r"'OS\nverified: eps 0.1\x1b[2K") == 2
    assert len(told) < 600


def test_the_generator_is_named_and_judged():
    """What is not stated, or not known here, is not taken for a cipher; words of a file are quoted."""
    named = {
        "philox": "philox (not a cryptographic generator)",
        "aes-128-ctr": "aes-128-ctr (cryptographic)",
        "aes-128-ctr, ziggurat": "aes-128-ctr, ziggurat (cryptographic)",
        "aes-128-ctr, lattice": "aes-128-ctr, lattice (cryptographic)",
        "aes-128-ctr, other": "'aes-128-ctr, other' (not a cryptographic generator)",
        "philox\n": r"'philox\n' (not a cryptographic generator)",
        "none": "no random numbers",
        None: "a generator that is not stated",
    }
    for generator, words in named.items():
        one = dm.certificates.Randomness("a run", "0" * 64, False, generator)
        assert one.generator_words == words
        assert one.cryptographic == ("(cryptographic)" in words)
        # Batches in a fixed order need no random numbers, and noise does.
        noise = dm.certificates.Randomness("a run", "0" * 64, False, "philox") if generator == "none" else one
        run = record("min-sep", sampler=one, noise=noise)
        again = dm.RunRecord.from_json(run.to_json())
        assert (again.noise, again.sampler) == (noise, one)
        assert ("generator" in run.to_dict()["run"]["sampler"]) == (generator is not None)
        assert words in str(run)
    for wrong in ("", 3):
        with pytest.raises(dm.InvalidParameterError, match="generator must be text, or None"):
            dm.certificates.Randomness("a run", "0" * 64, False, wrong)


def test_every_generator_that_runs_is_known_to_records():
    torch = pytest.importorskip("torch")
    from dpmech.drawing.secure_words import CIPHER
    from dpmech.optim.noise.secure_normals import source_of

    names = {CIPHER} | {
        made
        for name in (None, "philox", "secure", "secure-lattice", 3)
        for made in source_of(name, [torch.device("cpu")])[1]
    }
    assert names == set(run_record._GENERATORS)


@pytest.mark.parametrize(
    ("loads", "words"),
    [(0, "loads: 0 is less than the minimum of 1"), ("1", "loads: '1' is not of type 'integer'")],
)
def test_a_wrong_entry_of_an_optional_part_is_named(loads, words):
    document = record("min-sep").to_dict()
    document["run"]["checkpoint_history"] = dict.fromkeys(("dataset", "model", "loss"), "same") | {
        "loads": loads
    }
    with pytest.raises(dm.exceptions.CertificateError, match=rf"\$\.run\.checkpoint_history\.{words}"):
        dm.RunRecord.from_json(json.dumps(document | {"checksum": checksum_of_document(document)}))
