"""Bodies of objects by libcurl: one thread makes the requests of all lanes of a reader."""
