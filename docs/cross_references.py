"""A Sphinx extension: every name in a signature leads somewhere, ours to our pages, others to theirs.

Pages are built without a network, so inventories of other projects cannot be asked. The few foreign names
that our signatures use stand here, each with its place; a name that is neither ours nor here fails the build.
"""

import re
from typing import Any

import numpy.typing as npt
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.typing import stringify_annotation

_PYTHON = "https://docs.python.org/3/library"
_NUMPY = "https://numpy.org/doc/stable/reference"
_TORCH = "https://docs.pytorch.org/docs/stable"
_KEYS = "https://cryptography.io/en/latest/hazmat/primitives/asymmetric/ed25519"

# By the name that an annotation has where it is read, which need not be the one under which it is documented.
FOREIGN = {
    "abc.ABC": f"{_PYTHON}/abc.html#abc.ABC",
    "collections.abc.Callable": f"{_PYTHON}/collections.abc.html#collections.abc.Callable",
    "collections.abc.Hashable": f"{_PYTHON}/collections.abc.html#collections.abc.Hashable",
    "collections.abc.Iterable": f"{_PYTHON}/collections.abc.html#collections.abc.Iterable",
    "collections.abc.Iterator": f"{_PYTHON}/collections.abc.html#collections.abc.Iterator",
    "collections.abc.Mapping": f"{_PYTHON}/collections.abc.html#collections.abc.Mapping",
    "collections.abc.Sequence": f"{_PYTHON}/collections.abc.html#collections.abc.Sequence",
    "concurrent.futures._base.Executor": f"{_PYTHON}/concurrent.futures.html#concurrent.futures.Executor",
    "concurrent.futures._base.Future": f"{_PYTHON}/concurrent.futures.html#concurrent.futures.Future",
    "dataclasses.InitVar": f"{_PYTHON}/dataclasses.html#init-only-variables",
    "datetime.datetime": f"{_PYTHON}/datetime.html#datetime.datetime",
    "enum.Enum": f"{_PYTHON}/enum.html#enum.Enum",
    "enum.IntEnum": f"{_PYTHON}/enum.html#enum.IntEnum",
    "enum.StrEnum": f"{_PYTHON}/enum.html#enum.StrEnum",
    "fractions.Fraction": f"{_PYTHON}/fractions.html#fractions.Fraction",
    "os.PathLike": f"{_PYTHON}/os.html#os.PathLike",
    "pathlib.Path": f"{_PYTHON}/pathlib.html#pathlib.Path",
    "numpy.bool": f"{_NUMPY}/arrays.scalars.html#numpy.bool",
    "numpy.dtype": f"{_NUMPY}/generated/numpy.dtype.html",
    "numpy.float64": f"{_NUMPY}/arrays.scalars.html#numpy.float64",
    "numpy.generic": f"{_NUMPY}/arrays.scalars.html#numpy.generic",
    "numpy.int64": f"{_NUMPY}/arrays.scalars.html#numpy.int64",
    "numpy.integer": f"{_NUMPY}/arrays.scalars.html#numpy.integer",
    "numpy.ndarray": f"{_NUMPY}/generated/numpy.ndarray.html",
    "numpy.random._generator.Generator": f"{_NUMPY}/random/generator.html#numpy.random.Generator",
    "numpy.typing.ArrayLike": f"{_NUMPY}/typing.html#numpy.typing.ArrayLike",
    "torch.Tensor": f"{_TORCH}/tensors.html#torch.Tensor",
    "torch._C.Generator": f"{_TORCH}/generated/torch.Generator.html",
    "torch.distributed.distributed_c10d.ProcessGroup": f"{_TORCH}/distributed.html",
    "dist.ProcessGroup": f"{_TORCH}/distributed.html",
    "torch.dtype": f"{_TORCH}/tensor_attributes.html#torch.dtype",
    "torch.nn.modules.module.Module": f"{_TORCH}/generated/torch.nn.Module.html",
    "torch.optim.optimizer.Optimizer": f"{_TORCH}/optim.html#torch.optim.Optimizer",
    "torch.utils.data.dataloader.DataLoader": f"{_TORCH}/data.html#torch.utils.data.DataLoader",
    "torch.utils.data.dataset.Dataset": f"{_TORCH}/data.html#torch.utils.data.Dataset",
    "torch.utils.hooks.RemovableHandle": f"{_TORCH}/generated/torch.nn.Module.html",
    "Figure": "https://matplotlib.org/stable/api/figure_api.html#matplotlib.figure.Figure",
    "Ed25519PrivateKey": f"{_KEYS}/#cryptography.hazmat.primitives.asymmetric.ed25519.Ed25519PrivateKey",
    "Ed25519PublicKey": f"{_KEYS}/#cryptography.hazmat.primitives.asymmetric.ed25519.Ed25519PublicKey",
    "dp_accounting.DpEvent": "https://github.com/google/differential-privacy",
    "PrivacyLossDistribution": "https://github.com/google/differential-privacy",
    "transformers.trainer_utils.TrainOutput": "https://huggingface.co/docs/transformers/main_classes/trainer",
}

# What numpy writes for `ArrayLike` is eight classes long, most of them private.
_ARRAY_LIKE = stringify_annotation(npt.ArrayLike, "smart")
_INIT_VAR = re.compile(r"~?dataclasses\.InitVar\[([^\[\]]*)\]")
_PROSE = re.compile(r"^( *)(?:Returns|Yields):\s*$")
# Attributes of a class stay in its description.
_SECTIONS = Config(napoleon_use_ivar=True)


def readable(signature: str | None) -> str | None:
    """A signature as it is called: `ArrayLike` by its name, fields by the types of what is given for them.

    Args:
        signature: in the words of autodoc, or what is returned.
    """
    if signature is None:
        return None
    signature = _INIT_VAR.sub(
        r"\1", signature.replace(_ARRAY_LIKE, "~numpy.typing.ArrayLike")
    )
    return signature.replace(
        "<factory>", "..."
    )  # which Python cannot read, and Sphinx then cuts at commas


def sections(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    lines: list[str],
) -> None:
    """A docstring's sections as fields, in place of what `sphinx.ext.napoleon` does when it is loaded.

    Our types stand in annotations: no words before a colon are taken for one, neither in what a function
    returns nor in the first line of a property.
    """
    for place, line in enumerate(lines):
        if (found := _PROSE.match(line)) and place + 1 < len(lines):
            lines[place] = ""
            lines[place + 1] = f"{found[1]}:returns: {lines[place + 1].strip()}"
    kind: Any = "method" if what in {"attribute", "data", "property"} else what
    lines[:] = GoogleDocstring(
        lines, _SECTIONS, app, kind, name, obj, options
    ).lines()


def linked(
    app: Sphinx,
    env: BuildEnvironment,
    node: pending_xref,
    text: nodes.TextElement,
) -> nodes.reference | None:
    """The link of a foreign name; None leaves it to Sphinx, which then warns."""
    place = (
        FOREIGN.get(node.get("reftarget", ""))
        if node.get("refdomain") == "py"
        else None
    )
    return place and nodes.reference("", "", text, refuri=place, internal=False)


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect(
        "autodoc-process-signature",
        lambda app, what, name, obj, options, signature, returned: (
            readable(signature),
            readable(returned),
        ),
    )
    app.connect("autodoc-process-docstring", sections)
    app.connect("missing-reference", linked)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
