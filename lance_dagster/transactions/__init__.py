"""How one version becomes the next: rules over values. Nothing here reads, writes, or looks at a clock."""
