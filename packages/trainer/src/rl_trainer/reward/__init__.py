"""How a response becomes a number: finding a user's function, calling it in processes of its own, reading
what it returns, the worker that does so beside the rows, and the rules that ship with the package.
"""
