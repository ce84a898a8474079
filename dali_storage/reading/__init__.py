"""Reading ahead: buffers, lanes, the prefetcher, and the position in the stream of batches."""
