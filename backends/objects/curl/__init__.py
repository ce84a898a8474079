"""Bodies of objects by libcurl: one thread asks for what all lanes of a reader need."""
