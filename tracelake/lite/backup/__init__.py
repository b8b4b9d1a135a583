"""`trace backup` and `trace restore`: copies of databases and files at one consistent point, and back."""
