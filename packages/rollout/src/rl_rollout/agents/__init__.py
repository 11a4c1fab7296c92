"""What happens in a row besides one generation.

- a loop: a coroutine per row that asks an engine, looks at the answer and perhaps asks again
- the tools that a loop lets the policy call
- how a configuration names a loop

Loops know engines by `BaseRollout` only, never which one they talk to.
"""
