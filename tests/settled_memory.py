"""Importing this module exempts every object that exists so far from Python's garbage collection.

The libraries under test make more than a million objects that live as long as their process. A full collection would
visit all of them, and in a forked process it would also copy every page that they are on.
"""

import gc

# Between two collections there are 700 new objects by default: less than one operation on a table makes.
NEW_OBJECTS, YOUNG, OLD = 20_000, 10, 10


def settle() -> None:
    """Exempt what exists, and collect what is made afterwards less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG, OLD)


settle()
