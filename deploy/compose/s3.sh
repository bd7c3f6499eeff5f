#!/bin/sh
# Writes who may log in, then becomes the server; the bucket is made once, and found at later starts.
set -eu
umask 077
. /run/noetl/environment
cat > /tmp/s3.json <<JSON
{"identities": [{"name": "noetl",
  "credentials": [{"accessKey": "$ACCESS_KEY", "secretKey": "$SECRET_KEY"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
JSON
# Executors of Spark get short-lived keys of the store. What signs them is the same at every start, so that they
# outlive one, and does not give the store's own keys away.
WEED_JWT_FILER_SIGNING_KEY="$(printf 'sign short-lived keys: %s' "$SECRET_KEY" | sha256sum | cut -d ' ' -f 1)"
export WEED_JWT_FILER_SIGNING_KEY
has_bucket() { echo s3.bucket.list | weed shell -master=127.0.0.1:9333 2> /dev/null | grep -qw noetl; }
(
  until wget -q -O /dev/null http://127.0.0.1:8333/healthz && has_bucket; do
    echo 's3.bucket.create -name noetl' | weed shell -master=127.0.0.1:9333 > /dev/null 2>&1 || true
    sleep 1
  done
  touch /tmp/ready
) &
# Volumes of 1 GB, as many as the disk holds: with those of 30 GB a bucket gets none on a small disk. Only S3
# asks who calls, so the rest listens to this container alone.
exec weed server -dir=/data -ip=127.0.0.1 -ip.bind=127.0.0.1 -s3.ip.bind=0.0.0.0 -master.telemetry=false \
  -master.peers=none -master.volumeSizeLimitMB=1024 -volume.max=0 -volume.minFreeSpace=64MiB -volume.preStopSeconds=0 \
  -filer -s3 -s3.port=8333 -s3.port.iceberg=0 -s3.port.lance=0 -s3.iam=true -s3.config=/tmp/s3.json
