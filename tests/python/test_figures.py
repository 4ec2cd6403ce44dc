"""Figures of matplotlib: each that a program shows comes back as a picture with its last state."""

import base64

import pytest

pytestmark = [pytest.mark.any_engine, pytest.mark.release]

# A picture of the state in which each figure is seen last is beside it.
WITHOUT_WAITING = """
import matplotlib.pyplot as plt

plt.plot([1, 2])
plt.show(block=False)
plt.plot([2, 1])
plt.savefig("changed.png")

plt.ion()
figure, axes = plt.subplots()
(line,) = axes.plot([0, 1], [0, 1])
for height in range(5):
    line.set_ydata([0, height])
    figure.canvas.draw()
    figure.canvas.flush_events()
figure.savefig("updated.png")

plt.figure()
for height in range(5):
    plt.plot([0, height])
    plt.pause(0.001)
    plt.savefig("cleared.png")
    plt.clf()

plt.figure()
plt.bar(["a", "b"], [1, 2])
plt.pause(0.001)
plt.savefig("closed.png")
plt.close()

plt.figure()
print(plt.get_fignums())
"""

KILLED = """
import os
import matplotlib.pyplot as plt

plt.plot([1, 2])
plt.pause(0.001)
os.kill(os.getpid(), 9)
"""

BACKENDS = """
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt

for number, backend in enumerate(["agg", "svg", "TkAgg", "qtagg"]):
    plt.switch_backend(backend)
    plt.plot([1, number])
    plt.show()
"""

ITS_OWN = """
import matplotlib.pyplot as plt

plt.plot([1, 2])
plt.show(block=False)
with open("figure_1.png", "w") as file:
    file.write("the program's own")
"""

PILLOW = """
from PIL import Image

Image.new("CMYK", (20, 10), 9).show()
Image.new("RGBA", (20, 10)).show(title="transparent")
"""

ANIMATION = """
import matplotlib.pyplot as plt
from matplotlib.animation import FuncAnimation

figure, axes = plt.subplots()
animation = FuncAnimation(figure, lambda height: axes.plot([0, height]), frames=5)
plt.show()
"""


async def figures(server, code, **more):
    """The output of a program, and its pictures by name."""
    result = await server.call(language="python", entrypoint_code=code, timeout="30s", memory_mb=512, **more)
    files = [file["path"] for file in result.structured_content["files"] if file.get("returned") == "image"]
    pictures = [base64.b64decode(block.data) for block in result.content if block.type == "image"]
    data = result.structured_content
    return data["stdout"] + data["stderr"], dict(zip(files, pictures, strict=True))


async def test_a_figure_that_is_shown_without_waiting_stays_open(server):
    result = await server.call(language="python", entrypoint_code=WITHOUT_WAITING, timeout="30s", memory_mb=512)
    data = result.structured_content
    assert data["stdout"] + data["stderr"] == "[1, 2, 3, 4]\n"
    # Each is the same picture as the one that was saved, so it is there once.
    names = ["changed.png", "cleared.png", "closed.png", *(f"figure_{number}.png" for number in range(1, 5)), "updated.png"]
    assert [file["path"] for file in data["files"]] == names
    pictures = [block.data for block in result.content if block.type == "image"]
    assert len(set(pictures)) == len(pictures) == 4
    assert sum(file["returned"] == "image" for file in data["files"]) == 4
    assert any("the same picture is shown once" in note for note in data["notes"])


@pytest.mark.parametrize("environment", [{}, {"MPLBACKEND": "Agg"}, {"MPLBACKEND": "TkAgg"}])
async def test_any_backend_shows_pictures(server, environment):
    printed, pictures = await figures(server, BACKENDS, env=environment)
    assert printed == "" and sorted(pictures) == [f"figure_{number}.png" for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (KILLED, ["figure_1.png"]),
        (ITS_OWN, ["figure_2.png"]),
        (ANIMATION, ["figure_1.png"]),
        (PILLOW, ["figure_1.png", "figure_2.png"]),
    ],
)
async def test_shown_figures_come_back_whatever_happens(server, program, names):
    printed, pictures = await figures(server, program)
    assert printed == "" and list(pictures) == names
