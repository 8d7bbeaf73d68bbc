"""The IO manager: frames of every library, partitions as filters, outputs as commits, inputs as pinned versions."""
