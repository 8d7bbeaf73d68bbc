"""The meaning of the bytes of a Lance table. Nothing here reads or writes files, or looks at a clock."""
