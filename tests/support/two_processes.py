"""A script as two processes over gloo; the tests look at what both of them found."""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch

WORLD = 2


def found_by_both(script, timeout=240):
    """Run a script that ends in `as_process` by two processes; what each of them found."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [sys.executable, script, str(rank), folder],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(WORLD)
        ]
        try:
            outputs = [process.communicate(timeout=timeout)[0] for process in running]
        finally:
            for process in running:
                process.kill()  # nothing to one that ended
        assert [process.returncode for process in running] == [0] * WORLD, "\n".join(outputs)
        return [torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(WORLD)]


def as_process(find):
    """Be one of the processes: save what `find(rank, folder)` returns; the folder is that of both."""
    rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    store = torch.distributed.FileStore(str(folder / "store"), WORLD)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    torch.save(find(rank, folder), folder / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
