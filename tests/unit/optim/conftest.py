"""These tests require torch; test_face.py tests the error messages without it."""

import importlib.util
from pathlib import Path

if importlib.util.find_spec("torch") is None:
    collect_ignore = [path.name for path in Path(__file__).parent.iterdir() if path.name != "test_face.py"]
