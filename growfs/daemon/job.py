"""What the environment says of the job that a mount is for: `auto` as the value of --partition and --peers."""

from __future__ import annotations

import os
import subprocess

from growfs.errors import UsageError

TORCHRUN = ("GROUP_RANK", "GROUP_WORLD_SIZE")
SLURM = ("SLURM_NODEID", "SLURM_NNODES")
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
"""Variables with the number of this node, from 0, and the number of nodes. Those of Open MPI count processes, which is
the same where it starts one on each node."""
OPEN_MPI_LOCAL = "OMPI_COMM_WORLD_LOCAL_SIZE"
"""How many processes Open MPI starts on this node."""
SLURM_NODES = "SLURM_JOB_NODELIST"
EXPAND_S = 10.0


def share() -> str:
    """I/N: the number of this node, and the number of nodes. Raises UsageError where no launcher says it."""
    launchers = [TORCHRUN, *([OPEN_MPI] if os.environ.get(OPEN_MPI_LOCAL) == "1" else []), SLURM]
    for number, count in launchers:
        if number in os.environ and count in os.environ:
            return f"{os.environ[number]}/{os.environ[count]}"
    names = ", or ".join(" and ".join(pair) for pair in (TORCHRUN, SLURM, OPEN_MPI))
    raise UsageError(
        f"'auto' needs {names} with one process per node in the environment (RANK counts GPUs, not nodes);"
        " or write it as 0/8"
    )


def hosts() -> tuple[str, ...]:
    """The names of the job's nodes. Raises UsageError where no launcher says them."""
    nodes = os.environ.get(SLURM_NODES)
    if not nodes:
        raise UsageError(
            f"'auto' needs {SLURM_NODES} of Slurm in the environment (torchrun and mpirun do not list the nodes);"
            " or write the nodes as HOST:PORT,..."
        )
    words = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=EXPAND_S)
    except FileNotFoundError:
        why = "there is no scontrol in PATH"
    except OSError as error:
        why = str(error.strerror)
    except subprocess.TimeoutExpired:
        why = f"scontrol took more than {EXPAND_S:.0f} seconds"
    except subprocess.CalledProcessError as error:
        why = error.stderr.strip() or f"scontrol ended with {error.returncode}"
    else:
        if names := done.stdout.split():
            return tuple(names)
        why = "scontrol showed no name"
    raise UsageError(f"'auto' could not expand {SLURM_NODES}={nodes}: {why}; write the nodes as HOST:PORT,...")
