"""The external process of the tests of Pipes: it writes the orders that its first argument names."""

import json
import sys

import pyarrow as pa

from lance_dagster import LanceTable, pipes_table

if __name__ == "__main__":
    script = json.loads(sys.argv[1])
    with pipes_table() as orders:
        columns = {"id": script["ids"]} | ({"region": script["regions"]} if "regions" in script else {})
        rows = pa.table(columns)
        match script["mode"]:
            case "append":
                orders.append(rows)
            case "stream":
                orders.append(rows.to_reader(max_chunksize=1))
            case "overwrite":
                orders.overwrite(rows)
            case "replace":
                orders.replace_where(script["where"], rows)
            case "replace_partitions":
                orders.replace_partitions(rows)
            case "staged":
                orders.append(orders.table.stage(rows))
            case "plain":
                # An empty append forks the branch; then a program that knows only tables can write to it.
                orders.append(rows.slice(0, 0))
                table = LanceTable.open(orders.table.uri)
                table.append(rows, branch=orders.branch)
            case "update":
                orders.append(rows)
                orders.table.update({"id": "id + 10"}, where=script["where"], branch=orders.branch)
            case "writes":
                for method, *ids in script["writes"]:
                    # A predicate stands before the ids.
                    predicate = [ids.pop(0)] if method == "replace_where" else []
                    given = pa.table({"id": pa.array(ids, pa.int64())})
                    getattr(orders, method)(*predicate, given, **script.get("said", {}))
            case "compact":
                orders.append(rows)
                orders.table.maintenance.compact(branch=orders.branch)
        if script.get("fails"):
            raise RuntimeError("the process broke after its write")
        orders.check("ids_are_positive", passed=min(script["ids"]) > 0)
