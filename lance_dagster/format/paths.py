"""Names of files and folders that come out of a file: which of them stay where they belong.

A table can be written by anybody who may write to its folder. A name in it that leads out of the folder would make
this package read, or copy, files of whoever runs it.
"""

_LONGEST = 1024


def is_file_name(name: str) -> bool:
    """Tell whether a name is that of a file directly in some folder."""
    return "/" not in name and "\\" not in name and is_path_inside(name)


def is_path_inside(path: str) -> bool:
    """Tell whether a path with "/" between segments stays below the folder it starts from."""
    if len(path) > _LONGEST or "\0" in path or not path.isprintable():
        return False
    return all(segment not in ("", ".", "..") for segment in path.split("/"))
