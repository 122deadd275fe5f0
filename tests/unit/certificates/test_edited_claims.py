"""Claims that were edited after they were computed: refused before a step is taken or a file is written."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.certificates.claim import check_unedited, checksum_of, with_checksum
from tests.support.forged_files import changed

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - after the check for torch

from dpmech.optim import NoiseStream, PrivateOptimizer, make_private  # noqa: E402

CAL = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 8.0, 1e-5, participation=dm.MinSep(4, 3))
CERTIFICATE = CAL.certificate(1.0, 5)
CLAIMS = {"calibration": CAL, "certificate": CERTIFICATE}
EDITS = {
    "sigma": 1e-3,
    "strategy": dm.LambdaCGD(24, 0.5),
    "participation": dm.EveryStep(),
    "adjacency": dm.Adjacency.REPLACE_ONE,
    "budget": dm.PrivacyBudget(1.0, 1e-5),
    "sensitivity": CAL.sensitivity.scaled(0.5),
    "achieved": CAL.achieved.scaled(0.5),
    "evidence": dataclasses.replace(CAL.evidence, rng_supplied=True),
    "checksum": "",
}


def by_hand(claim):
    """Put together from its parts."""
    parts = {
        one.name: getattr(claim, one.name) for one in dataclasses.fields(claim) if one.name != "checksum"
    }
    return type(claim)(**parts)


def set_in_place(claim):
    changed = copy.copy(claim)
    object.__setattr__(changed, "sigma", 1e-3)
    return changed


RELABELLED = {
    "by": dataclasses.replace(CAL.achieved, by=dm.numerics.Provenance("a better one")),
    "guarantee": dataclasses.replace(CAL.achieved, guarantee=dm.Guarantee(dm.Kind.BOUND)),
}
FORGED = {
    **{f"{kind}: {name}": dataclasses.replace(claim, achieved=value)
       for kind, claim in CLAIMS.items() for name, value in RELABELLED.items()},
    **{f"{kind}: {name}": changed(claim, **{name: value})
       for kind, claim in CLAIMS.items() for name, value in EDITS.items()},
    "certificate: clip_norm": dataclasses.replace(CERTIFICATE, clip_norm=2.0),
    "certificate: expected_batch_size": dataclasses.replace(CERTIFICATE, expected_batch_size=10.0),
    **{f"{kind}: by hand": by_hand(claim) for kind, claim in CLAIMS.items()},
    **{f"{kind}: in place": set_in_place(claim) for kind, claim in CLAIMS.items()},
    "certificate of an edited calibration": dm.Certificate(
        **{one.name: getattr(CAL, one.name) for one in dataclasses.fields(CAL)} | {"sigma": 1e-3}
    ),
}  # fmt: skip


def stream(claim):
    return NoiseStream(claim, [torch.zeros(3)], clip_norm=1.0, generator=1)


def optimizer(claim):
    sgd = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    return PrivateOptimizer(sgd, claim, clip_norm=1.0, expected_batch_size=5, generator=1)


def training(claim):
    model = torch.nn.Linear(2, 1)
    data = TensorDataset(torch.zeros(20, 2), torch.zeros(20, 1))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model, x, y):
        return ((model(x) - y) ** 2).sum()

    return make_private(model, sgd, DataLoader(data, batch_size=5), claim, clip_norm=1.0, loss=loss)


@pytest.mark.parametrize("name", list(FORGED))
@pytest.mark.parametrize("use", [stream, optimizer, training])
def test_training_refuses_an_edited_claim_before_its_first_step(name, use):
    words = (
        "put together by hand" if name.endswith(("by hand", "checksum")) else "edited after it was computed"
    )
    with pytest.raises(dm.exceptions.CertificateError, match=words):
        use(FORGED[name])


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_honest_claims_train(claim, tmp_path):
    path = tmp_path / "certificate.json"
    CERTIFICATE.save(path)
    same = [
        claim,
        copy.copy(claim),
        copy.deepcopy(claim),
        pickle.loads(pickle.dumps(claim)),
        dataclasses.replace(claim),
    ]
    for one in [*same, dm.Certificate.load(path), CAL.certificate()]:
        assert check_unedited(one) is one
        stream(one)
    optimizer(claim)
    training(claim)


@pytest.mark.parametrize("name", [name for name in FORGED if name.startswith("calibration")])
def test_an_edited_calibration_has_no_certificate(name):
    with pytest.raises(dm.exceptions.CertificateError, match="so that nothing supports it"):
        FORGED[name].certificate()


@pytest.mark.parametrize("name", [name for name in FORGED if name.startswith("certificate")])
def test_an_edited_certificate_is_not_saved(name, tmp_path):
    with pytest.raises(dm.exceptions.CertificateError, match="so that nothing supports it"):
        FORGED[name].save(tmp_path / "certificate.json")
    with pytest.raises(dm.exceptions.CertificateError, match="so that nothing supports it"):
        FORGED[name].certificate(1.0, 5.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", list(FORGED))
def test_an_edited_claim_enters_no_ledger(name):
    ledger = dm.Ledger()
    with pytest.raises(dm.exceptions.CertificateError, match="so that nothing supports it"):
        ledger.add("run", FORGED[name])
    assert ledger.releases == ()


def test_terms_of_a_run():
    terms = CAL.certificate().certificate(2.0, 7.0)
    assert terms == CAL.certificate(2.0, 7.0)
    assert check_unedited(terms).checksum == CAL.certificate(2.0, 7.0).checksum
    with pytest.raises(dm.InvalidParameterError, match="clip_norm"):
        CERTIFICATE.certificate(-1.0, 7.0)


def test_a_forger_can_compute_it_and_verify_finds_out(tmp_path):
    weaker = with_checksum(dataclasses.replace(CERTIFICATE, sigma=0.9 * CERTIFICATE.sigma))
    weaker.save(tmp_path / "weaker.json")
    assert not dm.verify(tmp_path / "weaker.json").ok


def test_one_bit_of_an_array_changes_the_checksum():
    matrix = np.tril(np.ones((40, 40)))
    cal = dm.calibrate_sigma(dm.Dense(matrix), 1.0, 1e-5, participation=dm.SingleParticipation())
    matrix[30, 7] = np.nextafter(1.0, 2.0)
    other = changed(cal, strategy=dm.Dense(matrix))
    with pytest.raises(dm.exceptions.CertificateError):
        check_unedited(other)
    assert checksum_of(dm.Dense(matrix)) != checksum_of(cal.strategy)
    assert checksum_of(dm.Dense(np.asfortranarray(matrix))) == checksum_of(other.strategy)


def test_contents_that_spell_alike_are_told_apart():
    bounds = [
        dm.Bounds.bracket(0.0, 1.0, dm.numerics.Provenance("a")),
        dm.Bounds.bracket(-0.0, 1.0, dm.numerics.Provenance("a")),
        dm.Bounds(0.0, 1.0, dm.Guarantee(dm.Kind.PROBABLE, 0.5), dm.numerics.Provenance("a")),
        dm.Bounds(0.0, 1.0, dm.Guarantee(dm.Kind.ESTIMATE, 0.5), dm.numerics.Provenance("a")),
        dm.Bounds.bracket(0.0, 1.0, dm.numerics.Provenance("a0")),
        dm.Bounds.bracket(0.0, 1.0, dm.numerics.Provenance("'a'")),
        dm.Bounds.bracket(0.0, 1.0, dm.numerics.Provenance("a", {"x": 1})),
        dm.Bounds.bracket(0.0, 1.0, dm.numerics.Provenance("a", {"x": 1.0})),
        dm.Bounds.bracket(0.0, 1.0, dm.numerics.Provenance("a", rests_on=(dm.numerics.Provenance("a"),))),
    ]
    assert len({checksum_of(one) for one in bounds}) == len(bounds)
    assert checksum_of(dm.MinSep(1, None)) != checksum_of(dm.MinSep(1, 1))
    assert checksum_of(dm.BLT(3, [0.5], [0.25])) != checksum_of(dm.BLT(3, [0.25], [0.5]))


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-300), st.floats(1e-300, 1e300))
def test_any_other_sigma_is_refused(sigma, other):
    changed = dataclasses.replace(CAL, sigma=sigma)
    if sigma != CAL.sigma:
        with pytest.raises(dm.exceptions.CertificateError):
            check_unedited(changed)
    fresh = with_checksum(changed)
    assert check_unedited(fresh) is fresh
    if other != sigma:
        assert with_checksum(dataclasses.replace(CAL, sigma=other)).checksum != fresh.checksum
