"""`tta serve`: one process that writes for many, over HTTP, and the page that shows texts settle."""
