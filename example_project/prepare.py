"""Make the folder of the example's state, with Dagster's settings in it: `python -m example_project.prepare`.

Nothing is deleted; `example_project.demo` starts with an empty folder instead.
"""

from example_project import places

if __name__ == "__main__":
    places.make()
