"""What goes into an engine and what comes out of it.

- requests and completions, one row at a time, and the seeds of rows
- from a padded batch to rows and back: padding and masks are decided here and nowhere else
- which tokens end a response or pad it
- how far an engine's log-probs are from a trainer's
"""
