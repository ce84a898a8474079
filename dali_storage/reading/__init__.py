"""Reading ahead: buffers, lanes, the prefetcher, and the position in the stream of batches.

In the order to read: `slots` and `opening` (what is plugged in), `source` (the batches of one
pipeline, which opens and closes all others), `prefetch`, `lanes`, `loading`, `batches`, `buffers`,
`position`. Imports order/, runtime/ and contract/, and no plug.
"""
