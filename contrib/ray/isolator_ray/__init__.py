"""Programs in Isolator's sandboxes, from tasks of Ray.

`start()` puts an actor on each node of the Ray cluster, which starts an Isolator there or finds the one that runs. `run()` sends a
program by HTTP to the Isolator of its own node, and to another one if that one does not run it. Ray places nothing but these actors:
programs never wait in a queue of Ray.
"""

from .client import Failed, Ran, Unserved
from .cluster import run, start, states, stop

__all__ = ["Failed", "Ran", "Unserved", "run", "start", "states", "stop"]
