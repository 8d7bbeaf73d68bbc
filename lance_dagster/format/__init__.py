"""What the bytes of a Lance table mean. Nothing here reads, writes, or looks at a clock."""
