#!/bin/sh
# Writes who may log in, then becomes the server.
set -eu
umask 077
cat > /tmp/s3.json <<JSON
{"identities": [{"name": "noetl",
  "credentials": [{"accessKey": "$ACCESS_KEY", "secretKey": "$SECRET_KEY"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
JSON
exec weed server -dir=/data -ip.bind=0.0.0.0 -ip=s3 -master.telemetry=false -volume.max=0 \
  -filer -s3 -s3.port=8333 -s3.config=/tmp/s3.json
