"""`trace udf test`: runs a bundle on this machine against files."""
