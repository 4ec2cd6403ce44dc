"""Matplotlib's backend in a sandbox: what a program shows becomes a picture in its working directory."""

import os
from itertools import count
from pathlib import Path

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

# Pictures are looked for where programs begin, wherever this one has gone meanwhile.
_FOLDER = Path("/workspace" if os.access("/workspace", os.W_OK) else "").absolute()


class FigureManager(FigureManagerBase):
    @classmethod
    def pyplot_show(cls, *, block=None):
        for manager in Gcf.get_all_fig_managers():
            manager.show()
        # As after the windows were closed.
        Gcf.destroy_all()

    def show(self):
        for number in count(1):
            try:
                # Never over a picture that the program has drawn or was given.
                with open(_FOLDER / f"figure_{number}.png", "xb") as file:
                    self.canvas.figure.savefig(file, format="png")
                return
            except FileExistsError:
                pass


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager
