"""`trace udf test`: a bundle run on this machine against files, with nothing sent anywhere."""
