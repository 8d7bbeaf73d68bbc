"""The differences between two versions: settings, schema, indices, fragments and rows."""
