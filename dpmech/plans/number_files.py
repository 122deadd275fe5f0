"""Numbers in .npy and CSV files, one or one row for each step."""

import io
import math
import os
import warnings

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import InvalidParameterError
from dpmech.files import read_bytes

# Upper bound on the header of a .npy file, in bytes.
_HEADER = 65_536


def read_numbers(key: str, path: str | os.PathLike[str], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """The numbers in a file.

    Args:
        key: name of the argument that error messages refer to.
        path: a .npy or CSV file.
        shape: (n,) or (n, n).

    Raises:
        InvalidParameterError: if the file cannot be read, or has another shape.
    """
    accepted, size = "a readable .npy or CSV file", " x ".join(map(str, shape))
    # At most 32 characters per number in CSV, so reading takes no more memory than the numbers expected.
    largest = _HEADER + 32 * math.prod(shape)
    content = read_bytes(key, path, largest=largest, accepted=accepted, hint=f", for {size} numbers")
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files without numbers, which are refused below
            if str(path).endswith(".npy"):
                _check_length(content)
                found = np.asarray(np.load(io.BytesIO(content), allow_pickle=False), dtype=np.float64)
            else:
                found = np.loadtxt(io.StringIO(content.decode("utf-8")), delimiter=",", ndmin=2)
    except Exception as error:  # numpy documents no error type for unreadable files
        raise InvalidParameterError(key, str(path), f"{accepted} ({str(error)[:200]})") from error
    if len(shape) == 1 and found.ndim == 2 and 1 in found.shape:
        found = found.ravel()
    if found.shape != shape:
        what = f"{size}, one row per step" if len(shape) > 1 else f"{size} numbers, one per step"
        raise InvalidParameterError(key, " x ".join(map(str, found.shape)), what)
    return found


def _check_length(content: bytes) -> None:
    """Refuse a .npy file shorter than its header says: numpy allocates the full size at once."""
    stream = io.BytesIO(content)
    reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(stream)
    if version not in reader:
        raise ValueError(f"version {version} of the format holds no plain numbers")
    shape, _, kind = reader[version](stream)
    if kind.kind not in "iuf":
        raise ValueError(f"it holds {kind}, and no numbers")
    held = len(content) - stream.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize > held:
        raise ValueError(f"its header says {' x '.join(map(str, shape))} numbers, and it holds {held} bytes")
