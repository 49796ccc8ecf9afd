"""--producer and py: files that the user's function makes, from the files of a store or from numbers.

Public module: `options`. Workers import `produced`; `process` is the process that runs the function.
"""
