"""The text of a verdict: what a check found, then examples of values, which not everyone may see."""

EXAMPLES = "; such as "
"""Between the finding of a check and its examples."""


def without_examples(description: str) -> str:
    """Return the finding alone.

    Examples:
        >>> without_examples("rows that repeat the id of another: 2; allowed: none; such as 7, 9")
        'rows that repeat the id of another: 2; allowed: none'
    """
    return description.partition(EXAMPLES)[0]
