"""The flights of New York City in 2013, loaded month by month through branches, audits and a tag."""
