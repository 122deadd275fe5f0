"""Checks and measurements of private training on a device: `python -m dpmech.optim.device_check`."""
