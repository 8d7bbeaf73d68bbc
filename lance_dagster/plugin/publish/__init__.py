"""Publishing: find audited versions, merge them into `main`, and move the channel that readers follow."""
