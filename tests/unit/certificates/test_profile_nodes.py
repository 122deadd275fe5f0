"""A profile inside a certificate: what is kept, what is refused, what a forged node comes to."""

import dataclasses
import functools
import json

import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates import Certificate, ProfileNodes, checksum_of_document, from_plain, to_plain
from dpmech.engines.profiles.curves import Curve, Nodes
from dpmech.numerics import BOUND, Provenance
from dpmech.verifying.labels import label_checks
from tests.support import saved


@functools.cache
def run(kind="independent"):
    """A certificate with nodes; those of independent bins take little, and no draws."""
    if kind == "drawn":
        return saved.certificate("bins inside").certificate(profile=profile(kind))
    name = NAMES[kind]
    return saved.certificate(name).certificate(profile=profile(kind))


@functools.cache
def profile(kind):
    if kind == "drawn":
        own = saved.certificate("bins inside")
        return dm.profile(own.mechanism, own.sigma, rng=1)
    own = saved.certificate(NAMES[kind])
    method = {"moments": dm.methods.Rdp(), "program": dm.methods.Deterministic(0.3)}.get(kind)
    return dm.profile(own.mechanism, own.sigma, method=method, rel_error=0.3)


SLOW = pytest.mark.slow
KINDS = ["independent", "fresh", "moments", "program", "drawn"]
NAMES = {
    "independent": "bins exact",
    "fresh": "bins fresh",
    "moments": "bins moments",
    "program": "bins program",
}


def moved(certificate, direction, factor, *, end="upper", place=None):
    """With one node of the first curve moved, in the middle of those with amplification."""
    (curve, times), *rest = certificate.nodes.curves
    side = getattr(curve, direction)
    values = list(getattr(side, end))
    at = len(values) // 4 if place is None else place
    # Its neighbours keep the order.
    values = [
        min(value, values[at] * factor) if index >= at and end == "upper" and factor < 1.0 else value
        for index, value in enumerate(values)
    ]
    if end == "lower":
        values = [
            max(value, values[at] * factor) if index <= at else value for index, value in enumerate(values)
        ]
        side = dataclasses.replace(side, upper=tuple(np.maximum(side.upper, values).tolist()))
    else:
        side = dataclasses.replace(side, lower=tuple(np.minimum(side.lower, values).tolist()))
    side = dataclasses.replace(side, **{end: tuple(values)})
    forged = dataclasses.replace(curve, **{direction: side})
    nodes = dataclasses.replace(certificate.nodes, curves=((forged, times), *rest))
    return dataclasses.replace(certificate, nodes=nodes)


def verdict(certificate, seconds=60.0):
    """The check of the claim, with the nodes that are decided with it."""
    (found,) = (
        check for check in dm.verify(certificate, max_seconds=seconds).checks if check.name == "claim"
    )
    return found


@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=SLOW) for kind in KINDS[1:])])
def test_a_file_keeps_every_node(kind):
    own = run(kind)
    again = Certificate.from_json(own.to_json())
    assert again == own
    assert again.curve.parts == profile(kind).parts
    assert again.curve.epsilon(1e-4) == profile(kind).epsilon(1e-4)
    assert again.fingerprint() == own.fingerprint()


@pytest.mark.exhaustive
@SLOW
@pytest.mark.parametrize("kind", KINDS)
def test_honest_nodes_are_confirmed_or_named(kind):
    found = verdict(run(kind))
    assert found.ok, found
    assert "upper ends of the profile hold" in found.detail
    left, every = found.verdict.open_nodes
    assert left < every


@pytest.mark.parametrize(
    ("kind", "direction", "factor"),
    [
        pytest.param("independent", "remove", 0.5, marks=SLOW),
        pytest.param("independent", "add", 0.5, marks=SLOW),
        pytest.param("moments", "remove", 1e-3, marks=SLOW),
        pytest.param("fresh", "remove", 0.5, marks=SLOW),
    ],
)
def test_a_node_on_the_wrong_side_is_refused(kind, direction, factor):
    found = verdict(moved(run(kind), direction, factor))
    assert not found.ok
    assert f"the profile has {direction.upper()} at eps" in found.detail


def test_curves_of_other_epochs_are_refused():
    own = run("fresh")
    ((curve, times),) = own.nodes.curves
    assert times == 2
    for wrong in (((curve, 1),), ((curve, 1), (curve, 1))):
        (found,) = label_checks(dataclasses.replace(own, nodes=dataclasses.replace(own.nodes, curves=wrong)))
        assert "epochs" in found.detail
    once = run()
    double = dataclasses.replace(once.nodes, curves=((once.nodes.curves[0][0], 2),))
    (found,) = label_checks(dataclasses.replace(once, nodes=double))
    assert "of [1] epochs, not of [2]" in found.detail


def test_what_costs_nothing_is_left_out():
    for name in ("poisson", "min-sep"):
        own = saved.certificate(name)
        with_profile = own.certificate(profile=dm.profile(own.mechanism, own.sigma))
        assert with_profile == own
        assert with_profile.curve is None


def test_a_calibration_takes_it_as_well():
    cal = saved.calibration("bins exact")
    own = cal.certificate(clip_norm=1.0, profile=profile("independent"))
    assert own.nodes == run().nodes
    assert own.certificate(clip_norm=2.0).nodes == own.nodes


def test_another_profile_is_refused():
    own, known = saved.certificate("bins exact"), profile("independent")
    others = [
        known.self_compose(2),
        known.compose(known),
        known.private_selection(dm.ledgers.PoissonRuns(2.0)),
        dataclasses.replace(known, of=None),
        dm.profile(own.mechanism, 1.01 * own.sigma, rel_error=0.3),
        profile("fresh"),
        "a profile",
    ]
    for other in others:
        with pytest.raises(dm.InvalidParameterError, match="profile"):
            own.certificate(profile=other)


def test_nodes_of_what_is_known_at_once_are_refused():
    own = saved.certificate("poisson")
    nodes = dataclasses.replace(profile("independent"), of=(own.mechanism, own.sigma))
    with pytest.raises(dm.UnsupportedCombinationError, match="known everywhere at once"):
        own.certificate(profile=nodes)


def test_an_estimate_is_no_evidence():
    guarantee = dm.Guarantee(dm.Kind.ESTIMATE, 1e-3)
    with pytest.raises(dm.InvalidParameterError, match="bound"):
        dataclasses.replace(run().nodes, guarantee=guarantee)
    with pytest.raises(dm.InvalidParameterError, match="at least one"):
        ProfileNodes((), run().nodes.guarantee, run().nodes.by)


def test_a_file_with_nodes_that_are_none_is_refused():
    def forged(change):
        document = run().to_dict()
        plain = from_plain(document["evidence"]["profile"])
        change(plain)
        document["evidence"]["profile"] = to_plain(plain)
        document.pop("checksum")
        return Certificate.from_json(json.dumps(document | {"checksum": checksum_of_document(document)}))

    def rising(plain):
        plain["curves"][0]["remove"]["eps"][1] = 0.0

    def above_one(plain):
        plain["curves"][0]["add"]["upper"][0] = 1.5

    def crossed(plain):
        plain["curves"][0]["add"]["lower"][0] = 1.0

    def more(plain):
        plain["curves"][0]["times"] = 0

    for change, words in ((rising, "increasing"), (above_one, "in"), (crossed, "at most"), (more, "schema")):
        with pytest.raises(dm.exceptions.CertificateError, match=words):
            forged(change)


def test_an_edited_node_is_found_by_the_checksum():
    with pytest.raises(dm.exceptions.CertificateError, match="edited"):
        moved(run(), "remove", 0.9).certificate()


@SLOW
def test_a_node_at_eps_zero_is_looked_at():
    """Under much noise delta at 0 is thousands of times what it is at 0.3."""
    mechanism = dm.Mechanism(dm.Identity(10), dm.BallsInBins(10))
    cal = dm.calibrate_sigma(mechanism, 0.3, 1e-5)
    truth = dm.delta(mechanism, cal.sigma, 0.0)
    assert truth.lower > 4e-5
    for stated, held in ((1.5 * truth.upper, True), (1e-5, False)):
        side = Nodes((0.0,), (0.0,), (stated,))
        nodes = ProfileNodes(((Curve(side, side), 1),), BOUND, of_nodes("bins.independent", 1, bins=10))
        found = verdict(dataclasses.replace(cal.certificate(), nodes=nodes), seconds=5.0)
        assert ("2 of 2 upper ends of the profile hold" in found.detail) is held, found


def with_nodes(own, *, by, guarantee, upper=(0.5, 1e-3), eps=(0.0, 6.0)):
    """The certificate with nodes made by hand; whoever writes them can checksum them."""
    side = Nodes(eps, (0.0,) * len(eps), upper)
    return dataclasses.replace(own, nodes=ProfileNodes(((Curve(side, side), 1),), guarantee, by))


def of_nodes(route, number=2, **facts):
    return Provenance("profile.nodes", {"nodes": number}, (Provenance(route, facts),))


PROBABLE, SURER = dm.Guarantee(dm.Kind.PROBABLE, 1e-9), dm.Guarantee(dm.Kind.PROBABLE, 1e-12)
SAMPLED = of_nodes("bins.certified", bins=4, beta=1e-9)


def test_nodes_from_samples_may_say_so():
    own = with_nodes(saved.certificate("bins inside"), by=SAMPLED, guarantee=PROBABLE)
    assert not list(label_checks(own))
    closer = with_nodes(
        saved.certificate("bins inside"), by=of_nodes("bins.certified", bins=4, beta=1e-12), guarantee=SURER
    )
    assert not list(label_checks(closer))


@pytest.mark.parametrize(
    ("by", "guarantee", "said"),
    [
        (SAMPLED, BOUND, "are Guarantee"),
        (SAMPLED, dm.Guarantee(dm.Kind.EXACT), "are Guarantee"),
        (SAMPLED, SURER, "are Guarantee"),
        (of_nodes("bins.certified", bins=4, beta=1e-12), PROBABLE, "are Guarantee"),
        (of_nodes("bins.certified", bins=5, beta=1e-9), PROBABLE, "come from"),
        (of_nodes("bins.certified", bins=4, beta=2.0), PROBABLE, "beta"),
        (of_nodes("bins.certified", bins=4, beta="none"), BOUND, "come from"),
        (of_nodes("bins.certified", 3, bins=4, beta=1e-9), PROBABLE, "come from"),
        (of_nodes("bins.program", bins=4), dm.Guarantee(dm.Kind.EXACT), "are Guarantee"),
        (of_nodes("bins.independent", bins=4), BOUND, "come from"),
        (Provenance("bins.fresh", {"bins": 4, "epochs": 3}), BOUND, "come from"),
        (Provenance("profile.nodes", {"nodes": 2}), BOUND, "what finds nodes"),
        (Provenance("claims.composed"), BOUND, "what finds nodes"),
    ],
)
def test_nodes_are_no_surer_than_what_they_come_from(by, guarantee, said, tmp_path):
    forged = with_nodes(saved.certificate("bins inside"), by=by, guarantee=guarantee)
    (tmp_path / "forged.json").write_text(forged.to_json())
    found = dm.verify(tmp_path / "forged.json")
    assert not found.ok
    (failure,) = found.failures
    assert "nodes of the profile" in failure
    assert said in failure


def test_nodes_of_another_kind_of_bins_say_where_they_come_from():
    fresh, independent = run("fresh"), run()
    assert not list(label_checks(fresh))
    assert not list(label_checks(independent))
    for own, other in ((fresh, independent), (independent, fresh)):
        labels = {"by": other.nodes.by, "guarantee": BOUND}
        (check,) = label_checks(dataclasses.replace(own, nodes=dataclasses.replace(own.nodes, **labels)))
        assert "come from" in check.detail


@pytest.mark.parametrize(
    ("name", "said"), [("poisson", "known everywhere"), ("users", "which nothing checks")]
)
def test_a_file_with_nodes_where_none_are_kept_is_refused(name, said):
    own = with_nodes(saved.certificate(name), by=SAMPLED, guarantee=PROBABLE)
    with pytest.raises(dm.exceptions.CertificateError, match=r"evidence\.profile") as caught:
        Certificate.from_json(own.to_json())
    assert said in str(caught.value)
