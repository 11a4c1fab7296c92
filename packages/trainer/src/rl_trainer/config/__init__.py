"""What a run is: the tree of keys, reading it from YAML and overrides, the configurations that ship with the
package, and what follows from the keys alone (numbers of steps, what the chosen estimator and loss read).
"""
