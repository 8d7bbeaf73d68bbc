"""The page of a lake: channels, candidates, the graph of commits and tables in one HTML file, for people on call."""
