"""Tests of graded code, in two processes: the one that asserts, and the one that holds the code.

- wire: plain values as JSON, and a line to the other process
- objects: what the judge sees of objects that stay with the graded code
- graded: runs the graded code and answers calls of it
- judge: runs the assertions; a name that they don't define is the graded code's

Both run in interpreters of their own, which load this folder alone: nothing here imports the rest of the
package.
"""
