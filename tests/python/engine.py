"""The state of the engine, read from the engine or the kernel itself: the tests must not believe the server.

The variable ISOLATOR_TEST_ENGINE chooses the engine: "docker", which is the default, or "embedded".
"""

import os

KIND = os.environ.get("ISOLATOR_TEST_ENGINE", "docker")

if KIND == "docker":
    import docker_engine as _engine
elif KIND == "embedded":
    import embedded_engine as _engine
else:
    raise ImportError(f"{KIND!r} is no engine")


def sandboxes(instance):
    """All sandboxes of an instance."""
    return _engine.sandboxes(instance)


def image_id(name):
    """The identity of an image."""
    return _engine.image_id(name)


# Faults of a waiting sandbox that come from outside.
FAULTS = _engine.FAULTS
RUNNING_FAULTS = _engine.RUNNING_FAULTS


def harm(sandbox, fault):
    """Does it to a sandbox, unless it has gone meanwhile."""
    _engine.harm(sandbox.id, fault)


def memory(children):
    """Memory in KiB of the processes that serve the engine: its own, or the server's children."""
    return _engine.memory(children)


def all_processes():
    """The processes on this machine that hold sandboxes, of any instance."""
    return _engine.all_processes()


def left(instance, state):
    """Everything of an instance, which keeps its state there, that is still to be found."""
    return _engine.left(instance, state)


def derive(image, name, variable):
    """Makes an image from another with one more variable."""
    _engine.derive(image, name, variable)


def tag(image, name):
    """Gives an image one more name, whatever had it before."""
    _engine.tag(image, name)


def remove_image(name):
    """Removes an image that `derive` or `tag` has named."""
    _engine.remove_image(name)
