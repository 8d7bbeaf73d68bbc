"""The version of the package, which the build reads here.

The metadata of an installation has it too, and takes longer to be found than any module of this package to be loaded.
"""

__version__ = "0.1.0"
