"""A Spark to work with: the session there is, else one of our own, with its Java and its JVM.

Start reading with `session`, which also sends our package to the executors of a cluster. `jvm`
starts the JVM of a local session faster than Spark's launcher, `java` finds the Java for it.
"""
