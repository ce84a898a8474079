"""A cache of samples of objects on a local disk, for the option `cache`.

Begin with `samples`; `entries` are the files, `quota` counts the bytes of all processes. A reader
opens its directory; files stay when it is closed. Imports files/, linux/, runtime/ and contract/.
"""
