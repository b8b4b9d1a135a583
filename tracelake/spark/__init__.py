"""What operators stand on: a Java, one warm Spark session per process, and the sources and writers that move rows."""
