"""How one commit of many tables is made: forked, staged table by table, and put."""
