"""A small task for the scripts of docs/examples that train on `accuracy_tasks.TASKS`."""

import accuracy_tasks
import numpy as np


def small_task(train: int = 60, test: int = 20, classes: int = 3, width: int = 6) -> accuracy_tasks.Task:
    """Clouds around `classes` points, with 20 examples for validation."""
    generator = np.random.default_rng(1)
    labels = generator.integers(classes, size=train + test + 20)
    rows = generator.normal(size=(len(labels), width)) + 2.0 * np.eye(width)[labels]
    return accuracy_tasks._task("small", rows, labels, train, test)
