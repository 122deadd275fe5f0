"""Registers an accountant with Opacus."""

from dpmech.exceptions import MissingDependencyError


def register_opacus_accountant() -> None:
    """Register `PrivacyEngine(accountant="dpmech")` with Opacus; a second call has no effect.

    Eps by this accountant is the upper bound, in `PrivacyEngine.get_epsilon` as well as in
    `make_private_with_epsilon`, which calibrates the noise by it. It requires that loaders use
    Poisson sampling, as those of `PrivacyEngine` do by default; see `dm.interchange.from_opacus_history`.

    Raises:
        MissingDependencyError: without Opacus 1.6 or later.
    """
    try:
        from opacus.accountants import register_accountant
    except ImportError as error:
        raise MissingDependencyError("opacus>=1.6", "opacus") from error
    from dpmech.optim.opacus_accountant import OpacusAccountant

    register_accountant(OpacusAccountant.mechanism(), OpacusAccountant, force=True)
