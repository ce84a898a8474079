"""Bad samples: finding them, delivering others in their place, and leaving them out.

In the order to read:

    replacement  the plug of a reader: which errors are of a sample, and which sample replaces it
    structure    what whole files look like, for `check`
    exclusion    leaves out the samples of a list
    arguments    the arguments of readers about all this

A reader without `on_error`, `check` and `exclude` loads none of them. Replacements are chosen in
the lanes, which append to the file `bad_samples`. Imports reading/, order/, samples/ and contract/.
"""
