"""How Java programs that tests start are to run."""

# They do not live long enough for the best machine code, which several threads would compile.
BRIEF = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
