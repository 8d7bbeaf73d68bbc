"""Rules by which one version becomes the next. Nothing here reads or writes files, or looks at a clock."""
