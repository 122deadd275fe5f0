"""State: what calls of a model and its loss leave behind, found, compared and put back."""

from dpmech.optim.state.afresh import Afresh, Parameters
from dpmech.optim.state.attributes import Attributes
from dpmech.optim.state.generators import (
    Streams,
    marks_of_globals,
    seed,
    seed_globals,
    seeds_of_torch,
    set_globals,
    set_torch,
    spared,
    stored,
    stored_globals,
)
from dpmech.optim.state.kept import HOOKS, NOT_OWN
from dpmech.optim.state.parts import named_parts, named_tensors
from dpmech.optim.state.references import (
    functions,
    generators_of,
    globals_read,
    hooks_of,
    installed,
    is_own,
    known,
    named,
    root,
)

__all__ = [
    "HOOKS",
    "NOT_OWN",
    "Afresh",
    "Attributes",
    "Parameters",
    "Streams",
    "functions",
    "generators_of",
    "globals_read",
    "hooks_of",
    "installed",
    "is_own",
    "known",
    "marks_of_globals",
    "named",
    "named_parts",
    "named_tensors",
    "root",
    "seed",
    "seed_globals",
    "seeds_of_torch",
    "set_globals",
    "set_torch",
    "spared",
    "stored",
    "stored_globals",
]
