"""What a configuration amounts to, before anything starts: derived keys filled in, every contradiction
refused, and a description in words.
"""
