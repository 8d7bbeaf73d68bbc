"""The rules about columns and settings: which ones the result has, and which rows do not fit them."""
