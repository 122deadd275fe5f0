"""Non-adaptive lists put together from numbers."""

import dpmech as dm
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.profile import PrivacyProfile
from dpmech.ledgers.ledger_totals import Whole, claimed


def whole(gaussian=(0.0, 0.0), sampled=(), claims=()):
    """What Gaussian releases, Poisson-sampled ones and (eps, delta) claims add up to."""
    adjacency = dm.Adjacency.ADD_REMOVE
    bound = dm.Guarantee(dm.Kind.BOUND)
    known = PrivacyProfile(Composition(gaussian, tuple(sampled)), bound, dm.numerics.Provenance("given"))
    profile = known.compose(*(claimed(*claim, adjacency) for claim in claims))
    return Whole(profile, tuple((*claim, 1) for claim in claims), 0.0, 0, bound)
