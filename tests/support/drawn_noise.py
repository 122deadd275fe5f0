"""The rows of a noise stream, drawn before another one of the same seed exists: two live ones are refused."""

from dpmech.optim import NoiseStream


class DrawnNoise:
    """All rows of NoiseStream(*args, **kwargs), handed out one by one."""

    def __init__(self, *args, **kwargs):
        stream = NoiseStream(*args, **kwargs)
        self._rows = iter([stream.step() for _ in range(stream.n)])
        stream.close()

    def step(self):
        return next(self._rows)
