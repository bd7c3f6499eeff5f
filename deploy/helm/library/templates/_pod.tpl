{{/* The account that a chart makes for its pods; a worker that starts executors or Jobs needs one. */}}
{{- define "noetl.ownAccount" -}}
{{- if and .Values.spark .Values.spark.onKubernetes -}}
{{ include "noetl.name" . }}-spark
{{- else if and .Values.containers .Values.containers.onKubernetes -}}
{{ include "noetl.name" . }}-jobs
{{- else -}}
default
{{- end -}}
{{- end }}
{{- define "noetl.podSpec" -}}
serviceAccountName: {{ .Values.serviceAccountName | default (include "noetl.ownAccount" .) }}
automountServiceAccountToken: {{ if or (and .Values.spark .Values.spark.onKubernetes) (and .Values.containers .Values.containers.onKubernetes) }}true{{ else }}false{{ end }}
# A Service named as ours would else put variables into pods that look like settings.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: {{ .Values.service }}
    image: {{ include "noetl.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    {{- with .Values.command }}
    command: {{ toJson . }}
    {{- end }}
    env:
      {{- include "noetl.environment" . | nindent 6 }}
      {{- with .Values.extraEnvironment }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - {name: health, containerPort: 9090}
      {{- with .Values.httpPort }}
      - {name: http, containerPort: {{ . }}}
      {{- end }}
    startupProbe:
      httpGet: {path: /livez, port: health}
      periodSeconds: 2
      failureThreshold: 60
    livenessProbe:
      httpGet: {path: /livez, port: health}
      periodSeconds: 10
    {{- /* Without the payload store an API still answers who waits for it. */}}
    readinessProbe:
      httpGet: {path: "/readyz{{ if .Values.httpPort }}?exclude=store{{ end }}", port: health}
      periodSeconds: 5
    resources:
      {{- toYaml .Values.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: ["ALL"]}
    volumeMounts:
      - {name: scratch, mountPath: /tmp}
      {{- with .Values.sharedMemory }}
      - {name: shared-memory, mountPath: /dev/shm}
      {{- end }}
volumes:
  - {name: scratch, emptyDir: {}}
  {{- with .Values.sharedMemory }}
  - {name: shared-memory, emptyDir: {medium: Memory, sizeLimit: {{ . | quote }}}}
  {{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "noetl.selectors" . | nindent 8 }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}
