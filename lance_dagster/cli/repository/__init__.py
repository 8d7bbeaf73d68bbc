"""The commands about a lake: what `lance-dagster VERB LAKE` does."""
