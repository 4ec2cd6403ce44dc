"""The managers of figures that matplotlib itself has, for kernels of Jupyter in the image: the image's own would draw some figures twice."""

from matplotlib.backend_bases import FigureManagerBase as FigureManager

__all__ = ["FigureManager"]
