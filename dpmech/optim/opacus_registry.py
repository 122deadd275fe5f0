"""Making an accountant known to Opacus."""

from dpmech.exceptions import MissingDependencyError


def register_opacus_accountant() -> None:
    """Make `PrivacyEngine(accountant="dpmech")` known to Opacus; a second call changes nothing.

    Eps by that accountant is the upper end of our bounds, in `PrivacyEngine.get_epsilon` as well as in
    `make_private_with_epsilon`, which sizes the noise by it. What has to hold is that loaders sample by
    Poisson, as those of `PrivacyEngine` do by default; see `dm.interchange.from_opacus_history`.

    Raises:
        MissingDependencyError: without Opacus 1.6 or later.
    """
    try:
        from opacus.accountants import register_accountant
    except ImportError as error:
        raise MissingDependencyError("opacus>=1.6", "opacus") from error
    from dpmech.optim.opacus_accountant import OpacusAccountant

    register_accountant(OpacusAccountant.mechanism(), OpacusAccountant, force=True)
