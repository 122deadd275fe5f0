"""Private training with Lightning: a callback that makes a Trainer's fit private.

Importing it imports Lightning (extra `lightning`).
"""

import importlib.util as _util

from dpmech.exceptions import MissingDependencyError as _MissingDependencyError

if _util.find_spec("lightning") is None:
    raise _MissingDependencyError("lightning", "lightning")

from dpmech.optim.lightning.callback import PrivateTraining

__all__ = ["PrivateTraining"]
