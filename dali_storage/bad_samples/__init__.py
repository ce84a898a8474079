"""Bad samples: finding them, delivering others in their place, and leaving them out.

`structure` knows what whole files look like, `replacement` chooses the samples in place of bad
ones, `exclusion` leaves out those of a list. A reader without `on_error` and `check` loads none of
them. Imports reading/, order/sampling/, samples/ and contract/.
"""
