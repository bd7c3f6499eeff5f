"""Names of container tasks: folders, files and labels."""

SOURCE = "container"
WORK_FOLDER = "/work"
RESULT_NAME = "result.json"
# Labels of Docker and Kubernetes; values of the first group are names of ours.
MANAGED_LABEL = "noetl.io/task"
KEY_LABEL = "noetl.io/attempt-key"
OWNER_LABEL = "noetl.io/owner"
DEADLINE_LABEL = "noetl.io/deadline"
