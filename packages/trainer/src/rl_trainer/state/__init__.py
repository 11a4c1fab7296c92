"""What is kept so that a run goes on: where it stands, the step folders that are whole or absent, and files
that are replaced in one piece.
"""
