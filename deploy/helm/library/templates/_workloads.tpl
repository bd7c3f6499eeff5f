{{- define "noetl.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "noetl.name" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  {{- if not (and .Values.scaling .Values.scaling.enabled) }}
  replicas: {{ .Values.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "noetl.selectors" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "noetl.labels" . | nindent 8 }}
    spec:
      {{- include "noetl.podSpec" . | nindent 6 }}
{{- end }}

{{/* Pods that keep their names: a worker's rows and shared memory are found again after a restart. */}}
{{- define "noetl.statefulSet" -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ include "noetl.name" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  {{- if not (and .Values.scaling .Values.scaling.enabled) }}
  replicas: {{ .Values.replicas }}
  {{- end }}
  serviceName: {{ include "noetl.name" . }}
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      {{- include "noetl.selectors" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "noetl.labels" . | nindent 8 }}
    spec:
      {{- include "noetl.podSpec" . | nindent 6 }}
{{- end }}

{{/* Names for the pods of a StatefulSet; nobody calls them by it. */}}
{{- define "noetl.headlessService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "noetl.name" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector:
    {{- include "noetl.selectors" . | nindent 4 }}
  ports:
    - {name: health, port: 9090, targetPort: health}
{{- end }}

{{- define "noetl.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "noetl.name" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  selector:
    {{- include "noetl.selectors" . | nindent 4 }}
  ports:
    - {name: health, port: 9090, targetPort: health}
    {{- if .Values.httpPort }}
    - {name: http, port: {{ .Values.httpPort }}, targetPort: http}
    {{- end }}
{{- end }}

{{- define "noetl.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "noetl.name" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "noetl.selectors" . | nindent 6 }}
{{- end }}

{{- define "noetl.podMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ include "noetl.name" . }}
  labels:
    {{- include "noetl.labels" . | nindent 4 }}
spec:
  selector:
    matchLabels:
      {{- include "noetl.selectors" . | nindent 6 }}
  podMetricsEndpoints:
    - {port: health, path: /metrics, interval: 15s}
{{- end }}

{{/* What `helm test` runs: the service answers under its name that it is ready. */}}
{{- define "noetl.releaseTest" -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ include "noetl.name" . }}-test
  labels:
    app.kubernetes.io/name: noetl-test
    app.kubernetes.io/instance: {{ .Release.Name }}
    app.kubernetes.io/part-of: noetl
  annotations:
    helm.sh/hook: test
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toJson . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: test
      image: {{ include "noetl.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command:
        - python
        - -c
        - import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read())
        - http://{{ include "noetl.name" . }}:9090/readyz
      resources:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {memory: 128Mi}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: ["ALL"]}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toJson . }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{ toJson . }}
  {{- end }}
{{- end }}
