"""The external process of the tests of Pipes: it writes the orders that its first argument names."""

import json
import sys

import pyarrow as pa

from lance_dagster import pipes_table

if __name__ == "__main__":
    script = json.loads(sys.argv[1])
    with pipes_table() as orders:
        rows = pa.table({"id": script["ids"]})
        if script["mode"] == "append":
            orders.append(rows)
        elif script["mode"] == "overwrite":
            orders.overwrite(rows)
        if script.get("fails"):
            raise RuntimeError("the process broke after its write")
        orders.check("ids_are_positive", passed=min(script["ids"]) > 0)
