#!/bin/sh
# Becomes a part of the Spark cluster: spark.sh master, worker or driver. Each listens at its address in the
# network that has the master; the other networks are for payloads and messages.
set -eu
find_address() {
  python -c 'import socket
look = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
look.connect((socket.gethostbyname("spark-master"), 7077))
print(look.getsockname()[0])'
}
find_java() {
  python -c 'import os
from pathlib import Path
from noetl_chassis.java import prepare_java_home
print(prepare_java_home(os.environ, folder=Path("/tmp")))'
}
find_spark() {
  python -c 'from importlib.util import find_spec
from pathlib import Path
print(Path(find_spec("pyspark").origin).parent)'
}
start_daemon() { # class, arguments
  daemon="org.apache.spark.deploy.$1"
  shift
  JAVA_HOME="$(find_java)" SPARK_HOME="$(find_spark)"
  export JAVA_HOME SPARK_HOME HOME=/tmp SPARK_LOCAL_DIRS=/tmp SPARK_DAEMON_MEMORY="${SPARK_DAEMON_MEMORY:-512m}"
  exec "$SPARK_HOME/bin/spark-class" "$daemon" "$@"
}

case "$1" in
  master)
    start_daemon master.Master --host spark-master --port 7077 --webui-port 8080
    ;;
  worker)
    # Executors see what this process sees: what a worker needs, and nothing of the ledger.
    set -a
    . /run/noetl/environment
    set +a
    start_daemon worker.Worker --host "$(find_address)" --port 7078 --webui-port 8081 --cores "${SPARK_CORES:-2}" \
      --memory "${SPARK_MEMORY:-2g}" --work-dir /tmp/work spark://spark-master:7077
    ;;
  driver)
    address="$(find_address)"
    export NOETL_WORKER_SPARK_CONF="spark.driver.host=$address;spark.driver.bindAddress=$address${NOETL_WORKER_SPARK_CONF:+;$NOETL_WORKER_SPARK_CONF}"
    exec /usr/local/bin/run
    ;;
esac
