"""Publishing: find audited versions, merge them into `main`, and move the tag that readers follow."""
