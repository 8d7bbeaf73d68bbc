"""The steps of one commit of many tables: fork, stage table by table, and put."""
