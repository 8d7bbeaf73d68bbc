"""Classes generated from `protos/` by `make proto`; only `lance_dagster.format.codec` imports them."""
